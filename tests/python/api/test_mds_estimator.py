"""`MDS` on one worker: known shapes recovered, scikit-learn's results and conventions, and errors that name the cell."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm
from numpy.typing import NDArray
from tidemill.ml import MDS, ConvergenceWarning, NotFittedError, procrustes
from tidemill.ml._job import active

#: How far from exact positions points may be with each storage, relative to the largest distance.
STORAGES = {"float32": 2e-6, "float16": 3e-4, "fixed16": 3e-5}


def distances(points: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    return found


def cube() -> NDArray[Any]:
    return np.array(np.meshgrid([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]), dtype=float).reshape(3, -1).T


def sphere(n: int = 200) -> NDArray[Any]:
    points = np.random.default_rng(1).standard_normal((n, 3))
    return points / np.linalg.norm(points, axis=1)[:, None]


def off(model: MDS, points: NDArray[Any]) -> float:
    """Return the largest distance of a point from its expected position, after the best rigid motion."""
    found = procrustes(model.embedding_, points)
    return float(np.linalg.norm(found.apply(model.embedding_) - points, axis=1).max() / distances(points).max())


def stress_of(positions: NDArray[Any], delta: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """Return the stress by its definition."""
    errors = (distances(positions) - np.nan_to_num(delta)) ** 2
    return float((errors if weights is None else weights * errors).sum() / 2)


# --- recovery --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("points", [cube(), sphere()], ids=["cube", "sphere"])
@pytest.mark.parametrize("init", ["classical", "random"])
def test_known_shapes_are_recovered(storage: str, points: NDArray[Any], init: str) -> None:
    for size in (1e-12, 1.0, 1e20):
        model = MDS(storage=storage, init=init, random_state=0, n_init=4, max_iter=1000, tol=1e-9).fit(
            distances(points) * size
        )
        assert off(model, points * size) < STORAGES[storage]
        assert model.normalized_stress_ < STORAGES[storage]


def test_neighbours_on_a_swiss_roll_unroll_it() -> None:
    """Distances along the surface, through neighbors, are those of a plane; straight lines through the roll are not
    among them.
    """
    csgraph = pytest.importorskip("scipy.sparse.csgraph", reason="SciPy is not installed")
    rng = np.random.default_rng(0)
    turn = np.sqrt(rng.uniform((1.5 * np.pi) ** 2, (4.5 * np.pi) ** 2, 600))
    height = rng.uniform(0, 21, 600)
    roll = np.stack([turn * np.cos(turn), height, turn * np.sin(turn)], axis=1)
    length = 0.5 * (turn * np.sqrt(1 + turn**2) + np.arcsinh(turn))
    flat = np.stack([length, height], axis=1)
    near = distances(roll)
    near[near > np.partition(near, 11, axis=1)[:, 11:12]] = 0
    paths = csgraph.shortest_path(np.maximum(near, near.T), directed=False)
    model = MDS(n_components=2).fit(paths)
    # Neighbors in space are neighbors in the plane.
    closest = np.argsort(distances(flat), axis=1)[:, 1:6]
    found = np.argsort(distances(model.embedding_), axis=1)[:, 1:16]
    kept = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(closest, found, strict=True)])
    assert kept > 0.9
    assert procrustes(model.embedding_, flat).fit > 0.98


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7])
def test_any_number_of_dimensions(k: int) -> None:
    points = np.random.default_rng(k).standard_normal((70, k))
    model = MDS(n_components=k).fit(distances(points))
    assert model.embedding_.shape == (70, k)
    assert off(model, points) < 3e-6


@pytest.mark.parametrize("d", [1, 3, 50, 700])
def test_vectors_stand_for_their_distances(d: int) -> None:
    vectors = np.random.default_rng(d).standard_normal((150, d)) + 1e4
    direct = MDS(metric="euclidean", max_iter=30, tol=0).fit(vectors)
    kept = MDS(max_iter=30, tol=0).fit(distances(vectors))
    assert direct.stress_ == pytest.approx(kept.stress_, rel=1e-4, abs=1e-8)
    assert direct.normalized_stress_ == pytest.approx(kept.normalized_stress_, abs=1e-6)


# --- the algorithm ---------------------------------------------------------------------------------------------------
def test_same_as_scikit_learns_smacof() -> None:
    """From the same start, after the same number of iterations, to the digits of float32."""
    manifold = pytest.importorskip("sklearn.manifold", reason="scikit-learn is not installed")
    vectors = np.random.default_rng(0).standard_normal((300, 10))
    delta, start = distances(vectors), vectors[:, :3]
    for iterations in (1, 2, 20):
        ours = MDS(max_iter=iterations, tol=0).fit(delta, init=start)
        theirs, _ = manifold.smacof(
            delta, n_components=3, init=start, n_init=1, max_iter=iterations, eps=0, normalized_stress=False
        )
        assert ours.n_iter_ == iterations
        assert ours.stress_ == pytest.approx(stress_of(ours.embedding_, delta), rel=1e-6)
        assert ours.stress_ == pytest.approx(stress_of(theirs, delta), rel=1e-6)
        assert procrustes(ours.embedding_, theirs).residual < 1e-4


@pytest.mark.parametrize("acceleration", [0, 1, 5])
@pytest.mark.parametrize("kind", ["none", "vector", "matrix"])
def test_stress_never_grows_and_ends_where_its_gradient_vanishes(kind: str, acceleration: int) -> None:
    """A wrong row of B(Z) Z, a wrong weight or an imprecise solution shows as increasing stress, or as a premature end."""
    rng = np.random.default_rng(3)
    delta = distances(rng.standard_normal((90, 8)))
    u = rng.uniform(0.1, 1, 90)
    weights = {"none": None, "vector": u, "matrix": np.triu(rng.uniform(size=(90, 90)) ** 3, 1)}[kind]
    if kind == "matrix" and weights is not None:
        weights = weights + weights.T
    w = {"none": np.ones((90, 90)), "vector": np.outer(u, u), "matrix": weights}[kind]
    assert w is not None
    model = MDS(init="random", random_state=0, max_iter=3000, tol=1e-9, acceleration=acceleration)
    model.fit(delta, weights=weights)
    assert (np.diff(model.history_) <= 0).all()
    assert len(model.history_) == model.n_iter_ > 20
    assert model.history_[-1] == pytest.approx(model.stress_)
    assert model.stress_ == pytest.approx(stress_of(model.embedding_, delta, w), rel=1e-5)
    everything = (w * delta**2).sum() / 2
    assert model.normalized_stress_ == pytest.approx(np.sqrt(model.stress_ / everything), rel=1e-5)
    x, d = model.embedding_, distances(model.embedding_)
    np.fill_diagonal(d, 1)
    ways = x[:, None] - x
    gradient = 2 * np.einsum("ij,ijk->ik", w * (1 - delta / d), ways)
    pull = 2 * np.einsum("ij,ijk->ik", w, np.abs(ways)).max()
    assert np.abs(gradient).max() < 2e-3 * pull


@pytest.mark.parametrize("seed", range(3))
def test_acceleration_saves_iterations(seed: int) -> None:
    """From the same start: an extrapolation that always fails would be plain SMACOF, or worse."""
    rng = np.random.default_rng(seed)
    delta = distances(rng.standard_normal((150, 20)))
    start = rng.standard_normal((150, 3))
    plain, fast = (MDS(max_iter=200, tol=0.0, acceleration=depth).fit(delta, init=start) for depth in (0, 5))
    assert fast.history_[130] < plain.history_[-1]


def test_a_vector_of_weights_is_the_matrix_of_its_products() -> None:
    """The closed form for one and conjugate gradients for the other solve the same system."""
    rng = np.random.default_rng(4)
    delta, u, start = distances(rng.standard_normal((80, 6))), rng.uniform(0, 3, 80), rng.standard_normal((80, 3))
    u[5] = 0.01
    vector = MDS(max_iter=400, tol=0).fit(delta, weights=u, init=start)
    full = MDS(max_iter=400, tol=0).fit(delta, weights=np.outer(u, u), init=start)
    assert vector.cg_iterations_ == 0 < full.cg_iterations_
    assert full.stress_ == pytest.approx(vector.stress_, rel=1e-3)
    ones = MDS(max_iter=50, tol=0).fit(delta, weights=np.full(80, 7.0), init=start)
    plain = MDS(max_iter=50, tol=0).fit(delta, init=start)
    assert ones.stress_ == pytest.approx(49 * plain.stress_)
    np.testing.assert_allclose(ones.embedding_, plain.embedding_, atol=1e-6)


def prepared_bytes(model: MDS, delta: NDArray[Any], weights: NDArray[Any] | None) -> int:
    """Return the bytes that a fit stores for distances and weights."""
    kept: int = model._prepare(active(), delta, weights).problem.cells.nbytes
    return kept


def test_weights_take_what_their_storage_says_and_vectors_of_them_nothing() -> None:
    """Catches a matrix of weights that is stored in more bytes, or a product of a vector that is materialized."""
    n = 160
    delta, u = distances(sphere(n)), np.random.default_rng(0).uniform(0.1, 1, n)
    for storage, cell in (("float32", 4), ("float16", 2), ("fixed16", 2)):
        plain = prepared_bytes(MDS(storage=storage), delta, None)
        assert plain == cell * n * n
        assert prepared_bytes(MDS(storage=storage), delta, u) == plain
        for weight_storage, weight in (("float32", 4), ("float16", 2), ("fixed16", 2)):
            model = MDS(storage=storage, weight_storage=weight_storage)
            assert prepared_bytes(model, delta, np.outer(u, u)) == plain + weight * n * n
    # Vectors of 3 features, and nothing else of size n squared.
    model = MDS(metric="euclidean")
    assert prepared_bytes(model, sphere(n), u) == prepared_bytes(model, sphere(n), None) < 100 * n


@pytest.mark.parametrize("weight_storage", STORAGES)
@pytest.mark.parametrize("metric", ["precomputed", "euclidean"])
def test_weights_in_two_bytes(weight_storage: str, metric: str) -> None:
    """With wrongly decoded weights, for distances or vectors, the stress reported would not be that of the given
    weights.
    """
    error = {"float32": 2**-23, "float16": 2**-11, "fixed16": 1 / 131070}[weight_storage]
    rng = np.random.default_rng(11)
    x = rng.standard_normal((130, 9))
    weights = np.triu(rng.uniform(size=(130, 130)), 1) * 40
    weights[weights < 12] = 0
    weights += weights.T
    model = MDS(metric=metric, weight_storage=weight_storage, max_iter=200, tol=1e-7)
    model.fit(x if metric == "euclidean" else distances(x), weights=weights)
    squares = stress_of(np.zeros((130, 3)), distances(x), np.ones_like(weights)) * weights.max()
    assert abs(model.stress_ - stress_of(model.embedding_, distances(x), weights)) < (error + 2e-6) * squares
    assert (np.diff(model.history_) <= 0).all()
    exact = MDS(metric=metric, max_iter=200, tol=1e-7).fit(
        x if metric == "euclidean" else distances(x), weights=weights
    )
    assert model.stress_ == pytest.approx(exact.stress_, rel=2e-3)


@pytest.mark.parametrize("weight_storage", STORAGES)
def test_a_tiny_weight_is_not_a_missing_distance(weight_storage: str) -> None:
    """A link stored as 0 would separate two groups; and 0 must remain a missing weight."""
    points = sphere(40)
    delta = distances(points)
    weights = np.kron(np.eye(2), np.ones((20, 20)))
    weights[:20, 20:] = np.where(np.arange(400).reshape(20, 20) % 3 == 0, 1e-14, 0)
    weights[20:, :20] = weights[:20, 20:].T
    delta[weights == 0] = np.nan
    model = MDS(weight_storage=weight_storage, max_iter=20).fit(delta, weights=weights)
    assert np.isfinite(model.embedding_).all()
    weights[:20, 20:] = weights[20:, :20] = 0
    with pytest.raises(ValueError, match="2 groups of points"):
        MDS(weight_storage=weight_storage).fit(delta, weights=weights)


@pytest.mark.parametrize("annealing", [False, True])
def test_missing_distances(annealing: bool) -> None:
    """Distances without weight must not be used, even if they are NaN, and the others must suffice."""
    rng = np.random.default_rng(5)
    points = sphere(150)
    delta = distances(points)
    weights = (rng.uniform(size=delta.shape) < (0.5 if annealing else 0.2)).astype(float)
    weights = 1 - np.maximum(weights, weights.T)
    delta[weights == 0] = np.nan
    np.fill_diagonal(delta, 0)
    model = MDS(annealing=annealing, max_iter=2000, tol=1e-10, random_state=0).fit(delta, weights=weights)
    assert off(model, points) < 1e-4
    assert model.normalized_stress_ < 1e-5


def test_a_point_without_weight_follows_the_others() -> None:
    points = sphere(60)
    delta, u = distances(points), np.ones(60)
    u[7] = 0
    hidden = delta.copy()
    hidden[7] = hidden[:, 7] = np.nan
    model = MDS(tol=1e-12).fit(hidden, weights=u)
    others = np.arange(60) != 7
    found = procrustes(model.embedding_[others], points[others])
    assert found.residual < 1e-5
    # If its distances are known, it is placed by them, though it attracts no others.
    model = MDS(tol=0, max_iter=300, init="random", random_state=1).fit(delta, weights=u)
    found = procrustes(model.embedding_[others], points[others])
    np.testing.assert_allclose(found.apply(model.embedding_[7]), points[7], atol=1e-3)


@pytest.mark.parametrize("metric", ["precomputed", "euclidean"])
def test_points_without_weight_are_placed_when_the_others_lie_still(metric: str) -> None:
    """The other points are in place from the start, so iterations ended with these points anywhere."""
    points, u = sphere(60), np.ones(60)
    u[:5] = 0
    delta = distances(points)
    delta[0, 9] = delta[9, 0] = np.nan
    model = MDS(tol=1e-12, metric=metric).fit(points if metric == "euclidean" else delta, weights=u)
    found = procrustes(model.embedding_[5:], points[5:])
    np.testing.assert_allclose(found.apply(model.embedding_), points, atol=1e-5)
    assert (model.positions_ == model.embedding_).all()


@pytest.mark.parametrize("kind", ["none", "vector", "matrix"])
@pytest.mark.parametrize("flat", ["place", "line", "plane", "turned plane", "far line"])
def test_a_flat_start_is_left(flat: str, kind: str) -> None:
    """Majorization keeps points on a line on that line, so the stress did not improve."""
    rng = np.random.default_rng(20)
    points = rng.standard_normal((40, 3))
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    start = {
        "place": np.full((40, 3), 5.0),
        "line": points * [1, 0, 0],
        "plane": points * [1, 1, 0],
        "turned plane": points * [1, 1, 0] @ turn,
        "far line": 1e3 * points * [0, 1, 0] + 7,
    }[flat]
    weights = {"none": None, "vector": rng.uniform(0.5, 1, 40), "matrix": np.ones((40, 40))}[kind]
    model = MDS(max_iter=2000, tol=1e-9).fit(distances(points), init=start, weights=weights)
    assert model.normalized_stress_ < 1e-4
    again = MDS(max_iter=2000, tol=1e-9).fit(distances(points), init=start, weights=weights)
    assert (again.embedding_ == model.embedding_).all()


def test_a_flat_start_that_fits_stays_flat() -> None:
    """Distances in a plane, starting from that plane, and of two points from their line: there is no reason to leave
    it.
    """
    plane = np.random.default_rng(0).standard_normal((30, 3)) * [1, 1, 0]
    assert (MDS().fit(distances(plane), init=plane).embedding_[:, 2] == 0).all()
    two = MDS().fit([[0.0, 3.0], [3.0, 0.0]], init=[[0, 0, 0], [1, 0, 0]])
    assert np.abs(two.embedding_[:, 1:]).max() == 0


def test_annealing_leaves_local_optima() -> None:
    """From a start that SMACOF alone cannot leave: two points of a line on the wrong sides of each other."""
    line = np.arange(6.0)[:, None]
    swapped = line[[0, 4, 2, 3, 1, 5]]
    stuck = MDS(n_components=1).fit(distances(line), init=swapped)
    free = MDS(n_components=1, annealing=True, random_state=0).fit(distances(line), init=swapped)
    assert stuck.normalized_stress_ > 0.1
    assert (np.diff(free.temperatures_) <= 0).all() and free.temperatures_[-1] == 0
    assert free.temperatures_[0] == pytest.approx(0.95 * 5 / np.sqrt(2))
    cold = MDS(n_components=1, annealing=True, t_min=1.0, random_state=0).fit(distances(line), init=swapped)
    assert set(cold.temperatures_[cold.temperatures_ < 1.0]) == {0.0}


def test_annealing_begins_at_the_largest_distance_of_vectors() -> None:
    """With a mere upper bound, it would begin at temperatures at which all distances vanish."""
    vectors = np.random.default_rng(0).standard_normal((40, 5))
    direct = MDS(metric="euclidean", annealing=True, alpha=0.5, random_state=0).fit(vectors)
    kept = MDS(annealing=True, alpha=0.5, random_state=0).fit(distances(vectors))
    assert direct.temperatures_[0] == pytest.approx(kept.temperatures_[0], rel=1e-5)
    assert direct.stress_ == pytest.approx(kept.stress_, rel=0.05)


def test_random_starts_compete() -> None:
    delta = distances(np.random.default_rng(6).standard_normal((40, 6)))
    alone = [MDS(2, init="random", random_state=seed).fit(delta).stress_ for seed in range(3)]
    best = MDS(2, init="random", random_state=0, n_init=8).fit(delta)
    assert best.stress_ <= alone[0]
    again = MDS(2, init="random", random_state=0, n_init=8).fit(delta)
    assert (again.embedding_ == best.embedding_).all()
    assert len(set(alone)) == 3


def test_distances_that_no_space_has() -> None:
    """A triangle that violates the inequality, and distances whose Gram matrix has large negative eigenvalues."""
    model = MDS(2).fit([[0.0, 1.0, 9.0], [1.0, 0.0, 1.0], [9.0, 1.0, 0.0]])
    assert model.stress_ == pytest.approx(49 / 3, rel=1e-3)
    rng = np.random.default_rng(0)
    wild = np.triu(rng.uniform(size=(60, 60)), 1)
    found = MDS(3, max_iter=2000).fit(wild + wild.T)
    assert np.isfinite(found.embedding_).all()
    assert found.stress_ < stress_of(np.zeros((60, 3)), wild + wild.T)


def test_very_few_points() -> None:
    assert MDS().fit([[0.0]]).embedding_.shape == (1, 3)
    two = MDS().fit([[0.0, 5.0], [5.0, 0.0]])
    assert np.linalg.norm(two.embedding_[0] - two.embedding_[1]) == pytest.approx(5)
    assert (MDS().fit(np.zeros((4, 4))).embedding_ == 0).all()
    assert MDS(metric="euclidean").fit(np.ones((4, 2))).stress_ < 1e-20


@pytest.mark.filterwarnings("error")
def test_points_that_all_coincide_fit_perfectly() -> None:
    """Kernels store a distance of 0 as slightly more, and the stress consisted entirely of that: 1."""
    for options in ({}, {"init": "random"}, {"annealing": True}):
        for weights in (None, np.arange(4.0), np.ones((4, 4))):
            assert MDS(**options).fit(np.zeros((4, 4)), weights=weights).normalized_stress_ == 0  # type: ignore[arg-type]
    assert MDS(metric="euclidean").fit(np.ones((4, 2))).normalized_stress_ == 0
    assert MDS().fit([[0.0]], weights=[[1.0]]).normalized_stress_ == 0
    # Only distances that count matter.
    assert MDS().fit(np.ones((3, 3)) - np.eye(3), weights=[1, 0, 0]).normalized_stress_ == 0
    assert MDS().fit(1e-4 * (np.ones((3, 3)) - np.eye(3)), init=np.zeros((3, 3))).normalized_stress_ < 1e-3


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads: int) -> None:
    delta = distances(np.random.default_rng(0).standard_normal((201, 5)))
    model = MDS(n_threads=threads, max_iter=20).fit(delta)
    assert (model.embedding_ == MDS(n_threads=1, max_iter=20).fit(delta).embedding_).all()


def test_instruction_sets_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill import _tidemill as native

    delta = distances(np.random.default_rng(0).standard_normal((150, 5)))
    for storage in STORAGES:
        stresses = []
        weighted = []
        for name in native.kernel_instruction_sets():
            monkeypatch.setenv("TIDEMILL_SIMD", name)
            stresses.append(MDS(storage=storage, max_iter=30, tol=0).fit(delta).stress_)
            weighted.append(MDS(weight_storage=storage, max_iter=30, tol=0).fit(delta, weights=1 / (1 + delta)).stress_)
        np.testing.assert_allclose(stresses, stresses[0], rtol=1e-6)
        np.testing.assert_allclose(weighted, weighted[0], rtol=1e-5)


# --- new points ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("metric", ["precomputed", "euclidean"])
def test_new_points_are_placed_among_the_others(metric: str) -> None:
    points = np.random.default_rng(2).standard_normal((130, 3)) * 50 + 7
    old, new = points[:100], points[100:]
    between = np.linalg.norm(new[:, None] - old, axis=2)
    model = MDS(metric=metric, tol=1e-10).fit(old if metric == "euclidean" else distances(old))
    placed = model.transform(new if metric == "euclidean" else between)
    motion = procrustes(model.embedding_, old)
    np.testing.assert_allclose(motion.apply(placed), new, atol=5e-3)
    np.testing.assert_allclose(
        model.transform(old if metric == "euclidean" else distances(old)), model.embedding_, atol=5e-3
    )


def test_new_points_with_weights_and_missing_distances() -> None:
    rng = np.random.default_rng(2)
    points = rng.standard_normal((130, 3))
    old, new = points[:100], points[100:]
    between = np.linalg.norm(new[:, None] - old, axis=2)
    model = MDS(tol=1e-10).fit(distances(old))
    motion = procrustes(model.embedding_, old)
    weights = (rng.uniform(size=between.shape) < 0.3).astype(float)
    wrong = np.where(weights > 0, between, np.nan)
    np.testing.assert_allclose(motion.apply(model.transform(wrong, weights=weights)), new, atol=1e-3)
    columns = (np.arange(100) < 50).astype(float)
    wrong = np.where(columns > 0, between, 1e6)
    np.testing.assert_allclose(motion.apply(model.transform(wrong, weights=columns)), new, atol=1e-3)
    with pytest.raises(ValueError, match="new point 4 are zero"):
        model.transform(between, weights=np.where(np.arange(30)[:, None] == 4, 0.0, weights))
    with pytest.raises(ValueError, match="distance of point 3 to point 7 is NaN"):
        bad = between.copy()
        bad[3, 7] = np.nan
        model.transform(bad)


@pytest.mark.parametrize("dimensions", [0, 1, 2])
def test_a_new_point_may_lie_off_what_the_others_lie_in(dimensions: int) -> None:
    """One place, a line and a plane: nothing led off it, and the distance to it was lost."""
    rng = np.random.default_rng(3)
    old = rng.standard_normal((20, 3)) * (np.arange(3) < dimensions)
    new = rng.standard_normal((6, 3))
    between = np.linalg.norm(new[:, None] - old, axis=2)
    model = MDS().fit(distances(old))
    for weights in (None, np.broadcast_to(np.linspace(0, 1, 20), between.shape)):
        placed = model.transform(between, weights=weights)
        np.testing.assert_allclose(np.linalg.norm(placed[:, None] - model.positions_, axis=2), between, atol=1e-4)
    # Two old points with nonzero weight also form a line.
    model = MDS().fit(distances(sphere(20)))
    placed = model.transform(np.ones((1, 20)), weights=np.arange(20) < 2)
    np.testing.assert_allclose(np.linalg.norm(placed - model.positions_[:2], axis=1), 1, atol=1e-5)


def test_a_new_point_ends_at_least_as_well_as_any_start() -> None:
    """Its stress has local optima: even far from exact, interpolation must find a good one."""
    rng = np.random.default_rng(8)
    vectors = rng.standard_normal((120, 9))
    delta = distances(vectors)
    model = MDS(2).fit(delta[:100, :100])
    placed = model.transform(delta[100:, :100])

    def stress(x: NDArray[Any], i: int) -> float:
        return float(((np.linalg.norm(x - model.embedding_, axis=1) - delta[100 + i, :100]) ** 2).sum())

    optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")
    gaps = []
    for i in range(20):
        others = [optimize.minimize(stress, start, args=(i,)).fun for start in model.embedding_[::10]]
        gaps.append(stress(placed[i], i) / min(others))
    assert np.median(gaps) < 1.001 and max(gaps) < 1.2


# --- refusals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "distance of point 31 to point 7 is NaN"),
        (np.inf, "distance of point 31 to point 7 is infinite"),
        (-1.0, "distance of point 31 to point 7 is negative"),
        (0.25, "distance of point 7 to point 31 is .*, but that of point 31 to point 7 is 0.25"),
    ],
)
def test_bad_distances_are_refused_with_the_cell(dtype: Any, value: float, message: str) -> None:
    delta = distances(sphere(80)).astype(dtype)
    delta[31, 7] = value
    for storage in STORAGES:
        with pytest.raises(ValueError, match=message):
            MDS(storage=storage).fit(delta)


@pytest.mark.parametrize("cell", [(3, 5), (7, 7)])
def test_one_large_distance_hides_no_bad_ones(cell: tuple[int, int]) -> None:
    """Next to a point a million away, distances of 1 in one direction and 50 in the other passed as rounding errors."""
    delta = distances(3 * sphere(20))
    delta[0, 1:] = delta[1:, 0] = 1e6
    MDS(max_iter=1).fit(delta)
    delta[cell] = 50.0
    with pytest.raises(ValueError, match=r"must be symmetric|to itself is 50, not 0"):
        MDS().fit(delta)


def test_tiny_negative_distances_are_refused_with_what_helps() -> None:
    """Squared distances by correlation, 2 (1 - c), can be slightly below 0."""
    delta = distances(sphere(20))
    delta[3, 3] = -1e-16
    with pytest.raises(
        ValueError, match=r"point 3 to point 3 is negative .*That is rounding: np.maximum\(X, 0\) takes it away"
    ):
        MDS().fit(delta)


def test_a_fit_that_ends_too_early_says_so(recwarn: pytest.WarningsRecorder) -> None:
    """The stress was 0.35 where 0.2 was possible, without a warning."""
    delta = distances(np.random.default_rng(0).normal(size=(60, 10)))
    with pytest.warns(ConvergenceWarning, match=r"MDS stopped after max_iter=3 iterations while .*tol=1e-06 of itself"):
        MDS(2, init="random", random_state=0, max_iter=3).fit(delta)
    recwarn.clear()
    MDS(2, max_iter=3, tol=0).fit(delta)
    MDS(2, max_iter=2000, tol=1e-3).fit(delta)
    MDS(2).fit(np.zeros((5, 5)))
    assert not recwarn.list


@pytest.mark.parametrize("metric", ["precomputed", "euclidean"])
def test_a_table_is_a_matrix_of_its_columns(metric: str) -> None:
    """A table was "got 1D array", and a query "got scalar array"."""
    rows = distances(sphere(12))
    table = tm.Table.from_numpy({f"c{number}": column for number, column in enumerate(rows.T)})
    model = MDS(metric=metric).fit(table)
    assert model.feature_names_in_.tolist() == table.columns
    assert (model.embedding_ == MDS(metric=metric).fit(rows).embedding_).all()
    data = tm.from_arrow(table)
    if metric == "precomputed":
        with pytest.raises(TypeError, match=r"X is a DataSet, whose rows have no order, so MDS cannot tell"):
            MDS(metric=metric).fit(data)
    else:
        placed = MDS(metric=metric).fit_transform(data.with_columns(id=tm.lit("p")))
        assert placed.columns == [*table.columns, "id", "mds0", "mds1", "mds2"]
        assert np.sort(placed.to_dict()["mds0"]) == pytest.approx(np.sort(model.embedding_[:, 0]))
        by_step = model.transform(data).to_dict()
        # Rows are placed batch by batch, until a batch no longer moves.
        assert np.sort(by_step["mds1"]) == pytest.approx(np.sort(model.transform(rows)[:, 1]), abs=1e-3)


def test_distances_by_a_function() -> None:
    """Of two arrays of rows: the same as the resulting matrix, including new points and those of weight 0; another
    shape is an error.
    """
    rng = np.random.default_rng(4)
    x, new = rng.normal(size=(70, 4)), rng.normal(size=(5, 4))

    def manhattan(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.abs(a[:, None] - b).sum(axis=2)

    weights = np.ones(70)
    weights[3] = 0
    model = MDS(2, metric=manhattan).fit(x, weights=weights)
    whole = MDS(2).fit(manhattan(x, x), weights=weights)
    np.testing.assert_allclose(model.embedding_, whole.embedding_, atol=1e-9)
    np.testing.assert_allclose(model.transform(new), whole.transform(manhattan(new, x)), atol=1e-9)
    assert model.n_features_in_ == 4
    with pytest.raises(ValueError, match=r"metric returned shape \(\) .*: it gets two arrays of rows"):
        MDS(metric=lambda a, b: 1.0).fit(x)
    with pytest.raises(ValueError, match="must be symmetric"):
        MDS(metric=lambda a, b: np.abs(a[:, None, 0] - 2 * b[:, 0]) * (a[:, None, 0] != b[:, 0])).fit(x)
    with pytest.raises(ValueError, match=r"'euclidean' or a function of two arrays of rows\. Got 'cosine'"):
        MDS(metric="cosine").fit(x)


@pytest.mark.parametrize(("dtype", "off"), [(np.float32, 5e-5), (np.float64, 5e-7)])
def test_what_rounding_leaves_is_taken(dtype: Any, off: float) -> None:
    delta = distances(sphere(20))
    delta /= delta.max()
    delta[3, 5] += off
    delta[7, 7] = off
    MDS(max_iter=1).fit(delta.astype(dtype))


def test_numbers_whose_squares_overflow_are_refused() -> None:
    """It was an OverflowError after the whole fit."""
    delta = distances(sphere(10))
    for storage in STORAGES:
        with pytest.raises(ValueError, match=r"Distances in X are too large, up to .*e\+200: .* in a larger unit"):
            MDS(storage=storage).fit(delta * 1e200)
    with pytest.raises(ValueError, match="Values of X are too large"):
        MDS(metric="euclidean").fit(sphere(10) * 1e200)
    with pytest.raises(ValueError, match=r"Weights are too large, up to 1e\+200"):
        MDS().fit(delta, weights=np.full(10, 1e200))


def test_similarities_are_refused() -> None:
    with pytest.raises(ValueError, match=r"point \d+ to itself is 1, not 0: X must hold distances, not similarities"):
        MDS().fit(np.corrcoef(np.random.default_rng(0).uniform(size=(9, 4))) ** 2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(9), "one number for each of the 10 points"),
        (-np.ones(10), "weight of point 0 is -1"),
        (np.full(10, np.nan), "weight of point 0 is nan"),
        (np.zeros(10), "All weights are zero"),
        (np.zeros((10, 10)), "All weights are zero"),
        (np.ones((10, 9)), "shape of this rank's distances"),
        (np.where(np.arange(100).reshape(10, 10) == 23, -1.0, 1.0), "weight of points 2 and 3 is negative"),
        (
            np.where(np.arange(100).reshape(10, 10) == 23, 0.5, 1.0),
            "weight of point 2 to point 3 is 0.5.*: weights must be symmetric",
        ),
        (np.kron(np.eye(2), np.ones((5, 5))), "2 groups of points .* 5 point.s.: 0, 1, 2, 3, 4"),
        (1.0 - np.eye(10)[3] - np.eye(10)[:, 3:4], "negative"),
    ],
)
def test_bad_weights_are_refused(weights: Any, message: str) -> None:
    for weight_storage in STORAGES:
        with pytest.raises(ValueError, match=message):
            MDS(weight_storage=weight_storage).fit(distances(sphere(10)), weights=weights)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"acceleration": -1}, "'acceleration' parameter of MDS must be an int in the range"),
        ({"n_components": 0}, "n_components"),
        ({"n_init": 0}, "n_init"),
        ({"max_iter": 0.5}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"tol": float("nan")}, "tol"),
        ({"alpha": 1.0}, "alpha"),
        ({"t_min": 0.0}, "t_min"),
        ({"annealing": "yes"}, "annealing"),
        ({"metric": "cosine"}, "metric"),
        ({"init": "best"}, "init"),
        ({"init": np.zeros((10, 3))}, r"fit\(init=...\)"),
        ({"storage": "float8"}, "storage"),
        ({"weight_storage": "float64"}, "weight_storage"),
        ({"n_threads": 0}, "n_threads"),
        ({"random_state": "today"}, "seed"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MDS(**parameters).fit(distances(sphere(10)))


def test_bad_starts_and_shapes_are_named() -> None:
    delta = distances(sphere(10))
    with pytest.raises(ValueError, match="init must be the positions of all points"):
        MDS().fit(delta, init=np.zeros((9, 3)))
    with pytest.raises(ValueError, match="initial position of point 2 is not finite"):
        MDS().fit(delta, init=np.where(np.arange(10)[:, None] == 2, np.nan, np.ones((10, 3))))
    with pytest.raises(ValueError, match="square matrix"):
        MDS().fit(delta[:, :8])
    with pytest.raises(ValueError, match="expecting 10 features"):
        MDS().fit(delta).transform(delta[:, :8])


# --- conventions -----------------------------------------------------------------------------------------------------
def test_input_is_left_alone_whatever_its_layout(tmp_path: Path) -> None:
    delta = distances(sphere(50))
    expected = MDS(max_iter=5).fit(delta).embedding_
    np.save(tmp_path / "delta.npy", delta)

    class Sliced:
        """Rows that are produced only on access, as from a file."""

        shape, dtype = delta.shape, delta.dtype

        def __getitem__(self, rows: slice) -> NDArray[Any]:
            return delta[rows]

    mapped = np.load(tmp_path / "delta.npy", mmap_mode="r")
    for layout in (np.asfortranarray(delta), delta[::-1][::-1], delta.tolist(), mapped, Sliced()):
        assert (MDS(max_iter=5).fit(layout).embedding_ == expected).all()
    whole = np.round(delta * 100)
    for dtype in (np.int32, np.uint8, np.float16):
        narrow = MDS(max_iter=5).fit(whole.astype(dtype))
        np.testing.assert_allclose(narrow.embedding_, MDS(max_iter=5).fit(whole).embedding_, atol=1e-9)


def test_use_before_fit() -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        MDS().transform([[1.0]])


def test_parameters_representation_and_pickle() -> None:
    model = MDS(2, annealing=True, random_state=1)
    assert repr(model) == "MDS(n_components=2, annealing=True, random_state=1)"
    delta = distances(sphere(20))
    model.fit(delta)
    again = pickle.loads(pickle.dumps(model))
    assert (again.transform(delta) == model.transform(delta)).all()
    assert list(again.get_feature_names_out()) == ["mds0", "mds1"]
    assert (MDS().fit_transform(delta) == MDS().fit(delta).embedding_).all()


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ("max_iter=40", 100),
        ("max_iter=40, n_init=3, init='random'", 100),
        ("max_iter=400, annealing=True, alpha=0.5, tol=1e-3", 80),
    ],
)
def test_a_long_fit_draws_how_much_is_done(options: str, last: int) -> None:
    """Only on a terminal, and over all temperatures and starts, so that it neither stops nor restarts."""
    program = (
        "import numpy as np\nfrom tidemill import _progress\nfrom tidemill.ml import MDS, mds\n"
        "mds._LONG_S = _progress._EVERY_S = 0.0\n"
        "x = np.random.default_rng(0).normal(size=(60, 20))\n"
        "d = np.sqrt(((x[:, None] - x) ** 2).sum(axis=2))\n"
        f"MDS(2, random_state=0, **dict(tol=0.0) | dict({options})).fit(d)\n"
    )
    for terminal in "", "120":
        environment = {**os.environ, "TIDEMILL_TERMINAL": terminal}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, env=environment)
        stderr = done.stderr.decode()
        assert done.returncode == 0, stderr
        if not terminal:
            assert stderr == ""
            continue
        shown = [line.strip() for line in stderr.split("\r") if "60 points, stress" in line]
        parts = [int(found[1]) for line in shown if (found := re.search(r"█ *░* *(\d+)%|(\d+)%", line)) and found[1]]
        assert parts == sorted(parts) and len(set(parts)) > 3, shown
        assert last <= parts[-1] <= 100, parts
        assert ("temperature" in shown[0]) == ("annealing" in options)
        assert all(len(line) <= 120 for line in shown)
        assert stderr.split("\r")[-1] == "", "the line is taken away"


def test_verbose_prints_each_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    model = MDS(verbose=1, init="random", random_state=0, max_iter=7).fit(distances(sphere(30)))
    assert len(capsys.readouterr().out.splitlines()) == model.n_iter_ == 7


@pytest.mark.parametrize("metric", ["precomputed", "euclidean"])
def test_scikit_learn_conventions(metric: str) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = checks.check_estimator(MDS(metric=metric), on_fail=None)
    failed = [(one["check_name"], one["exception"]) for one in results if one["status"] == "failed"]
    assert not failed
