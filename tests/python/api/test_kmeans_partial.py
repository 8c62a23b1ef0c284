"""`KMeans(sync="partial")`: a fixed point of Lloyd's algorithm, about as good as Lloyd's own, on one worker and
several.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tidemill
from numpy.typing import NDArray
from standing import run
from tidemill.ml import KMeans


def data(n: int, d: int, k: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-5, 5, (k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def is_fixpoint(model: KMeans, x: NDArray[Any], weights: NDArray[Any] | None = None) -> bool:
    """Return whether labels are those of the nearest centers, and these are the means of their rows."""
    weights = np.ones(len(x)) if weights is None else weights
    distances = ((x[:, None, :] - model.cluster_centers_) ** 2).sum(axis=2)
    inertia = float(weights @ distances[np.arange(len(x)), model.labels_])
    means = [
        np.average(x[model.labels_ == at], axis=0, weights=weights[model.labels_ == at])
        for at in range(len(model.cluster_centers_))
    ]
    return (
        bool((distances.argmin(axis=1) == model.labels_).all())
        and np.allclose(means, model.cluster_centers_, atol=1e-9)
        and bool(np.isclose(inertia, model.inertia_))
    )


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("options", [{}, {"local_sweeps": 4}, {"part_means": "unweighted"}, {"parts": 20}])
def test_a_fixpoint_within_a_percent_of_lloyds(options: dict[str, Any], ordered: bool) -> None:
    """With ordered rows, parts that are distributed once, or never, see different clusters."""
    x = data(2000, 3, 9, seed=0)
    if ordered:
        x = x[np.argsort(x[:, 0])]
    for seed in range(2):
        lloyd = KMeans(9, random_state=seed, n_threads=1).fit(x)
        model = KMeans(9, random_state=seed, n_threads=1, sync="partial", **options).fit(x)
        assert is_fixpoint(model, x)
        assert model.inertia_ <= 1.01 * lloyd.inertia_
        account = model.account_
        assert account.sync == "partial" and account.rounds > 1
        assert model.n_iter_ == account.rounds + account.iterations
        assert account.passes > model.n_iter_ and account.bytes_sent == 0
        assert lloyd.account_.sync == "global" and lloyd.account_.passes == lloyd.n_iter_ + 1


def test_one_part_is_lloyds_algorithm() -> None:
    """With all rows in one part, the first round settles; the second finds nothing to do."""
    x = data(500, 4, 5, seed=1)
    kwargs = {"random_state": 3, "n_threads": 1, "tol": 0}
    lloyd = KMeans(5, **kwargs).fit(x)
    model = KMeans(5, **kwargs, sync="partial", parts=1).fit(x)
    assert (model.labels_ == lloyd.labels_).all() and model.account_.rounds == 2
    assert model.account_.iterations <= 2


def test_weights_stand_for_rows() -> None:
    x = data(600, 2, 5, seed=2)
    weights = np.random.default_rng(0).integers(0, 4, len(x)).astype(float)
    model = KMeans(5, random_state=0, n_threads=1, sync="partial").fit(x, sample_weight=weights)
    assert is_fixpoint(model, x, weights)
    assert model.cluster_weights_.sum() == weights.sum()


def test_more_parts_than_rows_and_empty_clusters() -> None:
    """Parts of one or two rows, and centers without rows."""
    x = data(12, 2, 3, seed=3)
    init = np.concatenate([x[:2], [[1e3, 1e3]]])
    model = KMeans(3, init=init, n_threads=1, sync="partial", parts=50).fit(x)
    assert is_fixpoint(model, x)
    assert set(model.labels_) == {0, 1, 2}


def test_limits() -> None:
    x = data(2000, 3, 9, seed=0)
    model = KMeans(9, random_state=0, n_threads=1, sync="partial", max_iter=2, tol=0).fit(x)
    assert model.account_.rounds == 2 and model.account_.iterations == 1
    assert model.predict(x).tolist() == model.labels_.tolist()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sync": "async"}, "'sync' parameter of KMeans must be a str among"),
        ({"sync": ["partial"]}, "'sync' parameter"),
        ({"part_means": "median"}, "'part_means' parameter"),
        ({"parts": 0}, "'parts' parameter of KMeans must be an int"),
        ({"local_sweeps": 1.5}, "'local_sweeps' parameter"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KMeans(2, **parameters).fit([[0.0], [1.0]])


def fit_part(x: NDArray[Any], cuts: list[int], parameters: dict[str, Any]) -> tuple[Any, ...]:
    """On a worker: fit the rows between this rank's cuts."""
    rank = tidemill.init().comm.rank
    model = KMeans(**parameters).fit(x[cuts[rank] : cuts[rank + 1]])
    return model.labels_, model.cluster_centers_, model.inertia_, model.account_


@pytest.mark.parametrize("cuts", [[0, 800, 1600, 2400], [0, 0, 2399, 2400]])
def test_workers(cuts: list[int]) -> None:
    """All ranks have the same centers, a fixed point over all rows, also if a rank has one row or none."""
    x = data(2400, 3, 6, seed=4)
    parameters = {"n_clusters": 6, "random_state": 0, "n_threads": 1}
    lloyd = KMeans(**parameters).fit(x)
    found = run(fit_part, x, cuts, {**parameters, "sync": "partial"}, workers=3)
    model = KMeans(**parameters)
    model.cluster_centers_, model.inertia_ = found[0][1], found[0][2]
    model.labels_ = np.concatenate([one[0] for one in found])
    assert is_fixpoint(model, x) and model.inertia_ <= 1.01 * lloyd.inertia_
    for _, centers, inertia, account in found:
        assert (centers == found[0][1]).all() and inertia == found[0][2]
        assert (account.rounds, account.iterations) == (found[0][3].rounds, found[0][3].iterations)
        values = 6 * 4
        assert account.bytes_sent == 8 * (account.rounds * (values + 3) + (account.iterations + 1) * (values + 1))
