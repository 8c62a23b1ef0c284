"""`procrustes`: the closed form, compared with SciPy and with known transformations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tidemill.ml import procrustes

seeds = st.integers(0, 2**32 - 1)


def orthogonal(rng: np.random.Generator, k: int, determinant: float) -> NDArray[Any]:
    q, _ = np.linalg.qr(rng.standard_normal((k, k)))
    q[:, 0] *= determinant * np.sign(np.linalg.det(q))
    return q


@given(seeds, st.integers(1, 40), st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from([1e-8, 1.0, 1e9]))
@settings(max_examples=200, deadline=None)
def test_what_was_done_to_the_points_is_found(
    seed: int, n: int, k: int, mirror: bool, scale: bool, size: float
) -> None:
    """A transposed rotation, a missing mean or a wrong sign leaves a residual."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, k)) * size
    factor = 2.5 if scale else 1.0
    turned = factor * points @ orthogonal(rng, k, -1.0 if mirror else 1.0) + rng.standard_normal(k) * size
    weights = rng.uniform(0.1, 1, n)
    found = procrustes(points, turned, weights=weights, scale=scale)
    assert found.residual <= 1e-12 * size * factor * 10
    np.testing.assert_allclose(found.apply(points), turned, atol=1e-11 * size)
    np.testing.assert_allclose(found.rotation @ found.rotation.T, np.eye(k), atol=1e-12)
    if n > k:
        assert found.determinant == (-1 if mirror else 1)
        assert found.scale == pytest.approx(factor)
        assert found.fit == pytest.approx(1)


@given(seeds, st.integers(3, 40), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_same_as_scipy(seed: int, n: int, k: int) -> None:
    linalg = pytest.importorskip("scipy.linalg", reason="SciPy is not installed")
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, k)), rng.standard_normal((n, k))
    weights = rng.uniform(0.1, 2, n)
    roots = np.sqrt(weights)[:, None]
    mean_a, mean_b = np.average(a, axis=0, weights=weights), np.average(b, axis=0, weights=weights)
    rotation, singular = linalg.orthogonal_procrustes(roots * (a - mean_a), roots * (b - mean_b))
    found = procrustes(a, b, weights=weights)
    expected = ((a - mean_a) @ rotation + mean_b - b) ** 2
    np.testing.assert_allclose(found.residual, np.sqrt(np.average(expected.sum(axis=1), weights=weights)), rtol=1e-9)
    if n > k:
        np.testing.assert_allclose(found.rotation, rotation, atol=1e-6)
    scaled = procrustes(a, b, weights=weights, scale=True)
    assert scaled.scale == pytest.approx(singular / (roots**2 * (a - mean_a) ** 2).sum())


@pytest.mark.filterwarnings("ignore:Optimal rotation is not uniquely")
@given(seeds, st.integers(2, 30))
@settings(max_examples=60, deadline=None)
def test_same_as_scipys_rotation_of_vectors(seed: int, n: int) -> None:
    """Kabsch's algorithm: without reflection, weighted, in three dimensions."""
    transform = pytest.importorskip("scipy.spatial.transform", reason="SciPy is not installed")
    rng = np.random.default_rng(seed)
    a, b, weights = rng.standard_normal((n, 3)), rng.standard_normal((n, 3)), rng.uniform(0.1, 2, n)
    a -= np.average(a, axis=0, weights=weights)
    b -= np.average(b, axis=0, weights=weights)
    _, rssd = transform.Rotation.align_vectors(b, a, weights=weights)
    found = procrustes(a, b, weights=weights, reflection=False)
    assert found.determinant == 1
    assert found.residual == pytest.approx(rssd / np.sqrt(weights.sum()), rel=1e-6, abs=1e-7)


@given(seeds, st.integers(1, 30), st.integers(1, 4), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_other_motion_is_better(seed: int, n: int, k: int, scale: bool, reflection: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b, weights = rng.standard_normal((n, k)), rng.standard_normal((n, k)), rng.uniform(0, 1, n) + 1e-3
    found = procrustes(a, b, weights=weights, scale=scale, reflection=reflection)

    def residual(mapped: NDArray[Any]) -> float:
        return float(np.sqrt(np.average(((mapped - b) ** 2).sum(axis=1), weights=weights)))

    np.testing.assert_allclose(residual(found.apply(a)), found.residual, rtol=1e-9, atol=1e-12)
    for _ in range(20):
        sign = rng.choice([-1.0, 1.0]) if reflection else 1.0
        other = a @ orthogonal(rng, k, sign) * (rng.uniform(0.1, 3) if scale else 1.0)
        other += np.average(b - other, axis=0, weights=weights)
        assert residual(other) >= found.residual - 1e-12


@pytest.mark.parametrize("reflection", [True, False])
def test_degenerate_points(reflection: bool) -> None:
    """Among equally good rotations, it must choose the one closest to the identity, or frames would spin."""
    one = procrustes([[1.0, 2.0, 3.0]], [[4.0, 4.0, 4.0]], reflection=reflection)
    np.testing.assert_allclose(one.rotation, np.eye(3), atol=1e-15)
    np.testing.assert_allclose(one.translation, [3, 2, 1])
    assert (one.residual, one.fit) == (0.0, 1.0)
    line = np.outer([0.0, 1.0, 3.0], [1.0, 0.0, 0.0])
    still = procrustes(line, line + 5, reflection=reflection)
    np.testing.assert_allclose(still.rotation, np.eye(3), atol=1e-12)
    flipped = procrustes(line, -line, reflection=reflection)
    assert flipped.residual < 1e-12
    assert flipped.determinant == 1 or reflection
    together = procrustes(np.ones((4, 2)), np.arange(8.0).reshape(4, 2), scale=True, reflection=reflection)
    assert together.scale == 1.0 and together.fit == pytest.approx(0)


def test_mirror_images_need_a_reflection() -> None:
    points = np.array([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]])
    mirrored = points * [1, 1, -1]
    assert procrustes(points, mirrored).determinant == -1
    assert procrustes(points, mirrored).residual < 1e-12
    rigid = procrustes(points, mirrored, reflection=False)
    assert rigid.determinant == 1 and rigid.residual > 0.3


def test_pairs_without_weight_are_not_looked_at() -> None:
    points = np.random.default_rng(0).standard_normal((5, 2))
    moved = points + 3
    moved[2] = np.nan
    found = procrustes(points, moved, weights=[1, 1, 0, 1, 1])
    np.testing.assert_allclose(found.translation, [3, 3])
    with pytest.raises(ValueError, match="Row 2 of fixed is not finite"):
        procrustes(points, moved)


@pytest.mark.parametrize(
    ("moving", "fixed", "weights", "message"),
    [
        ([[1.0, 2.0]], [[1.0]], None, "same shape"),
        ([1.0, 2.0], [1.0, 2.0], None, "shape"),
        (np.empty((0, 2)), np.empty((0, 2)), None, "at least one"),
        ([[1.0], [2.0]], [[1.0], [2.0]], [0, 0], "All weights are zero"),
        ([[1.0], [2.0]], [[1.0], [2.0]], [1, -1], "Weight 1 is -1"),
        ([[1.0], [2.0]], [[1.0], [2.0]], [1, np.nan], "Weight 1 is nan"),
        ([[1.0], [2.0]], [[1.0], [2.0]], [1], "each of the 2 points"),
        ([[1.0], [np.inf]], [[1.0], [2.0]], None, "Row 1 of moving"),
    ],
)
def test_bad_input_is_named(moving: Any, fixed: Any, weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        procrustes(moving, fixed, weights=weights)
