"""`StandardScaler`: scikit-learn's results and conventions, rows distributed over workers, DataSets."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import standing
import tidemill as tm
from tidemill.ml import StandardScaler


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_as_scikit_learn(dtype: Any) -> None:
    """Also where a textbook sum of squares loses all precision: far from 0, with constant features, NaN and weights."""
    preprocessing = pytest.importorskip("sklearn.preprocessing", reason="scikit-learn is not installed")
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(9000, 5)) * [1, 1e3, 1e-3, 0, 0] + [1e4, 0, 1, 7.3, 0]).astype(dtype)
    with_nan = x.copy()
    with_nan[rng.uniform(size=x.shape) < 0.1] = np.nan
    weights = rng.uniform(0, 2, len(x))
    for rows in (x, with_nan):
        for sample_weight in (None, weights):
            for options in ({}, {"with_mean": False}, {"with_std": False}):
                ours = StandardScaler(**options).fit(rows, sample_weight=sample_weight)
                theirs = preprocessing.StandardScaler(**options).fit(rows, sample_weight=sample_weight)
                for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
                    a, b = getattr(ours, name), getattr(theirs, name)
                    assert (a is None) == (b is None), name
                    if a is not None:
                        # scikit-learn sums float32 in float64 in another order; the variance of a constant feature is a
                        # rounding error.
                        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9, err_msg=f"{name} {options}")
                scaled = ours.transform(rows)
                assert scaled.dtype == dtype
                np.testing.assert_allclose(scaled, theirs.transform(rows), rtol=1e-3, atol=1e-3)
                np.testing.assert_allclose(ours.inverse_transform(scaled), rows, rtol=1e-4, atol=1e-4)
    parts = StandardScaler()
    for first in range(0, len(x), 700):
        parts.partial_fit(x[first : first + 700])
    np.testing.assert_allclose(parts.var_, StandardScaler().fit(x).var_, rtol=1e-9, atol=1e-20)


def test_large_numbers_keep_their_spread() -> None:
    x = 1e9 + np.arange(100_001.0)[:, None] % 3
    assert StandardScaler().fit(x).var_ == pytest.approx(x.var(), rel=1e-9)
    assert StandardScaler().fit(x).mean_ == pytest.approx(x.mean(), rel=1e-15)


def test_scikit_learn_conventions() -> None:
    """All of scikit-learn's checks for estimators."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = checks.check_estimator(StandardScaler(), on_fail=None)
    failed = [(one["check_name"], one["exception"]) for one in results if one["status"] == "failed"]
    assert not failed


def test_data_sets() -> None:
    """Columns by name, others unchanged; errors name the column."""
    data = tm.from_dict({"id": ["a", "b", "c"], "x": [1.0, 2.0, 6.0], "n": [1, 3, 5], "w": [1.0, 1.0, 0.0]})
    scaler = StandardScaler().fit(data, sample_weight="w")
    assert scaler.feature_names_in_.tolist() == ["x", "n"]
    assert scaler.mean_ is not None and scaler.mean_.tolist() == [1.5, 2.0]
    made = scaler.transform(data)
    assert made.columns == ["id", "x", "n", "w"]
    assert made.sort("id").to_dict()["x"] == [-1.0, 1.0, 9.0]
    assert scaler.inverse_transform(made).sort("id").to_dict()["n"] == [1.0, 3.0, 5.0]
    again = StandardScaler().fit_transform(data.select("id", "x"))
    assert sum(again.to_dict()["x"]) == pytest.approx(0)
    assert StandardScaler().fit(data, columns=["n"]).n_features_in_ == 1
    assert scaler.transform(data.collect()).shape == (3, 2)
    with pytest.raises(ValueError, match=r"no column 'y'; there are 'id', 'x', 'n', 'w'"):
        scaler.fit(data, columns=["y"])
    with pytest.raises(TypeError, match=r"column 'id' is Utf8, not numbers"):
        StandardScaler().fit(data, columns=["id"])
    with pytest.raises(ValueError, match=r"column 'x' has 1 null: leave these rows out with drop_nulls\('x'\)"):
        StandardScaler().fit(tm.from_dict({"x": [1.0, None]}))
    with pytest.raises(ValueError, match="needs columns of numbers"):
        StandardScaler().fit(data.select("id"))


def on_a_worker() -> str:
    """Results on a worker: with rows distributed in order, one rank without any, and for a DataSet; and error messages."""
    comm = tm.init().comm
    x = np.random.default_rng(3).normal(1e6, [1, 100], (5001, 2))
    ends = [0, 0, 4000, 5001]
    scaler = StandardScaler().fit(x[ends[comm.rank] : ends[comm.rank + 1]])
    assert scaler.var_ is not None and scaler.mean_ is not None
    np.testing.assert_allclose(scaler.var_, x.var(axis=0), rtol=1e-9)
    np.testing.assert_allclose(scaler.mean_, x.mean(axis=0), rtol=1e-14)
    assert len({value.tobytes() for value in comm.allgather(scaler.var_)}) == 1
    data = tm.from_local(tm.Table.from_numpy({"a": x[comm.rank :: 3, 0], "b": x[comm.rank :: 3, 1]}))
    of_data = StandardScaler().fit(data)
    assert of_data.var_ is not None and of_data.n_samples_seen_ == 5001
    np.testing.assert_allclose(of_data.var_, x.var(axis=0), rtol=1e-9)
    spread = of_data.transform(data).select(a=tm.col("a").std(), b=tm.col("b").mean()).to_pylist()[0]
    assert abs(spread["a"] - 1) < 1e-3 and abs(spread["b"]) < 1e-9, spread
    with pytest.raises(ValueError) as refused:
        StandardScaler().fit(np.full((2, 2), np.inf if comm.rank == 1 else 0.0))
    return str(refused.value)


def test_rows_dealt_over_workers() -> None:
    """All ranks have bitwise the same result, which is that of all rows; an error on one is raised on all."""
    refused = standing.run(on_a_worker, workers=3)
    assert "Input X contains infinity" in refused[1]
    assert refused[0] == refused[2] and refused[0].startswith("rank 1: Input X contains infinity")
