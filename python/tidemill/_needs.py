"""Optional packages: names what to install if one is missing."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["needed"]

#: The extra of Tidemill that contains each package.
_EXTRAS = {
    "pyarrow": "files",
    "cloudpickle": "run",
    "networkx": "networks",
    "scipy": "networks",
    "adbc_driver_manager": "database",
    "adbc_driver_sqlite": "database",
    "adbc_driver_postgresql": "database",
}


def needed(module: str, call: str) -> Any:
    """Import `module` for `call`.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        # If the package exists, but one of its dependencies does not, the error already says so.
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        extra = _EXTRAS.get(package)
        install = f'pip install "tidemill[{extra}]"' if extra else f"pip install {package}"
        raise ModuleNotFoundError(f"{call} needs {package}: {install}", name=error.name) from error
