"""scikit-learn's conventions for estimators, without scikit-learn: parameters, representation, tags, input checks.

scikit-learn is optional. If it is loaded, its exception and warning classes are raised, so that code written for it
catches them; tags use its classes when it asks for them.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ConvergenceWarning",
    "Estimator",
    "NotFittedError",
    "check_features",
    "check_weights",
    "matrix",
    "warning_class",
]

Self = TypeVar("Self", bound="Estimator")


class NotFittedError(ValueError, AttributeError):
    """An estimator was used before ``fit``."""


class ConvergenceWarning(UserWarning):
    """A fit ended before it converged."""


def _sklearn_class(name: str, ours: type[Any]) -> type[Any]:
    """Return our class, derived also from scikit-learn's class of the same name if scikit-learn is loaded."""
    module = sys.modules.get("sklearn.exceptions")
    if module is None:
        return ours
    theirs = getattr(module, name)
    return cast("type[Any]", type(name, (ours, theirs), {"__module__": ours.__module__}))


def not_fitted(estimator: Estimator) -> Exception:
    """Return the error for `estimator` used before ``fit``."""
    message = f"This {type(estimator).__name__} instance is not fitted yet. Call 'fit' before using this estimator."
    return cast(Exception, _sklearn_class("NotFittedError", NotFittedError)(message))


def warning_class() -> type[Warning]:
    """Return the class of convergence warnings."""
    return _sklearn_class("ConvergenceWarning", ConvergenceWarning)


class Estimator:
    """Base of estimators. Parameters are the arguments of ``__init__``, stored unchanged in attributes of the same
    names.
    """

    @classmethod
    def _parameters(cls) -> dict[str, inspect.Parameter]:
        signature = inspect.signature(cls.__init__)
        return {name: parameter for name, parameter in signature.parameters.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; `deep` is accepted for compatibility with scikit-learn."""
        return {name: getattr(self, name) for name in sorted(self._parameters())}

    def set_params(self: Self, **params: Any) -> Self:
        """Set parameters by name.

        Raises
        ------
        ValueError
            If a parameter does not exist.
        """
        valid = self._parameters()
        for name, value in params.items():
            if name not in valid:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: {sorted(valid)!r}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        def same(value: object, default: object) -> bool:
            if isinstance(value, np.ndarray) or isinstance(default, np.ndarray):
                return value is default
            return bool(value is default or (type(value) is type(default) and value == default))

        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in self._parameters().items()
            if not same(getattr(self, name), parameter.default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise not_fitted(self)


def _names(x: object) -> NDArray[np.object_] | None:
    """Return the column names of a table, if it has them and all are strings."""
    columns = getattr(x, "columns", None)
    if columns is None or callable(columns):
        return None
    names = list(columns)
    strings = [isinstance(name, str) for name in names]
    if any(strings) and not all(strings):
        kinds = sorted({type(name).__name__ for name in names})
        raise TypeError(
            "Feature names are only supported if all input features have string names, but your input has "
            f"{kinds} as feature name / column name types. If you want feature names to be stored and validated, you "
            "must convert them all to strings, by using X.columns = X.columns.astype(str) for example. Otherwise you "
            "can remove feature / column names from your input data, or convert them all to a non-string data type."
        )
    return np.array(names, dtype=object) if names and all(strings) else None


def matrix(x: Any, estimator: str, empty_allowed: bool = False) -> tuple[NDArray[Any], NDArray[np.object_] | None]:
    """Return `x` as a C-contiguous array of shape (n, d), float32 if `x` is float32, else float64; and its column
    names.

    It is copied only if layout or type require this. Values are not checked; see `not_finite`.

    Raises
    ------
    ValueError, TypeError
        With scikit-learn's messages, for anything that is not a matrix of real numbers.
    """
    if getattr(x, "format", None) is not None and hasattr(x, "toarray"):
        raise TypeError(
            f"Sparse data was passed for X, but dense data is required by {estimator}. "
            "Use '.toarray()' to convert to a dense numpy array."
        )
    names = _names(x)
    array = np.asarray(x)
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported\n{array}\n")
    if array.ndim == 1 and array.size == 0 and empty_allowed:
        array = array.reshape(0, 0)
    if array.ndim == 0:
        raise ValueError(
            f"Expected 2D array, got scalar array instead:\narray={array}.\nReshape your data either using "
            "array.reshape(-1, 1) if your data has a single feature or array.reshape(1, -1) if it contains a single sample."
        )
    if array.ndim == 1:
        raise ValueError(
            f"Expected 2D array, got 1D array instead:\narray={array}.\nReshape your data either using "
            "array.reshape(-1, 1) if your data has a single feature or array.reshape(1, -1) if it contains a single sample."
        )
    if array.ndim > 2:
        raise ValueError(f"Found array with dim {array.ndim}, while dim <= 2 is required by {estimator}.")
    dtype = np.float32 if array.dtype == np.float32 else np.float64
    try:
        array = np.ascontiguousarray(array, dtype=dtype)
    except (TypeError, ValueError) as error:
        if array.dtype.kind in "OUSV":
            raise type(error)(str(error)) from error
        raise
    if not empty_allowed:
        for axis, kind in ((0, "sample"), (1, "feature")):
            if array.shape[axis] == 0:
                raise ValueError(
                    f"Found array with 0 {kind}(s) (shape={array.shape}) while a minimum of 1 is required by {estimator}."
                )
    return array, names


def not_finite(x: NDArray[Any], estimator: str) -> ValueError:
    """Return the error for a matrix with a value that is not finite: its kind, and the position of the first one."""
    row, column = (int(i) for i in np.argwhere(~np.isfinite(x))[0])
    where = f"The first is at row {row}, column {column}."
    if np.isnan(x).any():
        return ValueError(
            f"Input X contains NaN.\n{estimator} does not accept missing values encoded as NaN. {where} "
            "Fill or drop them first, for example with sklearn.impute."
        )
    return ValueError(f"Input X contains infinity or a value too large for {x.dtype!r}. {where}")


def check_weights(weights: Any, n: int) -> NDArray[np.float64] | None:
    """Return sample weights as float64, or ``None`` if all are 1.

    Raises
    ------
    ValueError
        If their number differs from that of rows, or one is negative or not finite.
    """
    if weights is None:
        return None
    array = np.asarray(weights)
    if array.ndim == 0:
        array = np.full(n, array)
    array = np.ascontiguousarray(array, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"Sample weights must be 1D array or scalar, got {array.ndim}D array.")
    if array.shape != (n,):
        raise ValueError(f"sample_weight.shape == {array.shape}, expected {(n,)}!")
    if not np.isfinite(array).all():
        raise ValueError("Input sample_weight contains NaN or infinity.")
    if (array < 0).any():
        raise ValueError("Negative values in data passed to `sample_weight`")
    return None if (array == 1).all() else array


def check_features(estimator: Any, x: NDArray[Any], names: NDArray[np.object_] | None) -> None:
    """Raise unless `x` has the features that `estimator` was fitted on."""
    import warnings

    name = type(estimator).__name__
    fitted = getattr(estimator, "feature_names_in_", None)
    if fitted is None and names is not None:
        warnings.warn(f"X has feature names, but {name} was fitted without feature names", UserWarning, stacklevel=3)
    elif fitted is not None and names is None:
        warnings.warn(
            f"X does not have valid feature names, but {name} was fitted with feature names", UserWarning, stacklevel=3
        )
    elif fitted is not None and names is not None and list(fitted) != list(names):
        raise ValueError(_name_difference(list(fitted), list(names)))
    if x.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {x.shape[1]} features, but {name} is expecting {estimator.n_features_in_} features as input."
        )


def _name_difference(fitted: list[str], given: list[str]) -> str:
    message = "The feature names should match those that were passed during fit.\n"
    unseen = sorted(set(given) - set(fitted))
    missing = sorted(set(fitted) - set(given))

    def listed(names: list[str]) -> str:
        shown = "".join(f"- {name}\n" for name in names[:5])
        return shown + ("- ...\n" if len(names) > 5 else "")

    if unseen:
        message += "Feature names unseen at fit time:\n" + listed(unseen)
    if missing:
        message += "Feature names seen at fit time, yet now missing:\n" + listed(missing)
    if not unseen and not missing:
        message += "Feature names must be in the same order as they were in fit.\n"
    return message
