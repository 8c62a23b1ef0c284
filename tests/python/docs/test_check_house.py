"""`tools/check-house`: what it finds in Python's sources."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def house() -> Any:
    loader = SourceFileLoader("check_house", str(Path(__file__).resolve().parents[3] / "tools/check-house"))
    spec = spec_from_loader("check_house", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_imports_upwards_are_found(house: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those inside a function or only for types; and a package without a place in the order."""
    sources = {
        "__init__.py": "from tidemill.table import Table",
        "_low.py": "from tidemill import _tidemill",
        "table/__init__.py": "from tidemill._low import thing\nfrom tidemill.table._a import b",
        "table/_a.py": "def f():\n    from tidemill.query import g",
        "table/_b.py": "if TYPE_CHECKING:\n    import tidemill.query._c",
        "table/_c.py": "from ..query import g",
        "table/_d.py": "from . import _a\nfrom .. import _low\nimport os, tidemill",
        "query/__init__.py": "from tidemill.table._a import _private, public\nfrom tidemill.table import _b",
        "query/_c.py": "from tidemill.query._d import _own",
        "other/__init__.py": "",
        "data/file.txt": "",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(house, "PYTHON_ORDER", ["_tidemill", "_low", "table", "query", "tidemill"])
    assert list(house.check_imports(tmp_path)) == [
        "other is not in PYTHON_ORDER of tools/check-house",
        "table/_a.py -> query",
        "table/_b.py -> query",
        "table/_c.py -> query",
        "table/_d.py -> tidemill",
    ]
    assert list(house.check_private_imports(tmp_path)) == ["query/__init__.py: tidemill.table._a._private"]


def test_an_exception_that_is_not_needed_fails(house: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the list of exceptions would only grow; `--update` removes it, and admits no new ones."""
    known = {"subjects_since": "2100-01-01", "upward_uses": [], "upward_imports": ["a.py -> b", "old.py -> b"]}
    known |= {"private_imports": [], "type_names": {}, "long_comments": {}, "long_functions": {}}
    exceptions = tmp_path / "house.json"
    exceptions.write_text(house.json.dumps(known))
    monkeypatch.setattr(house, "EXCEPTIONS", exceptions)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    (tmp_path / "crates").mkdir()
    monkeypatch.setattr(house, "check_imports", lambda: iter(["a.py -> b"]))
    monkeypatch.setattr(house, "check_private_imports", lambda: iter(()))
    assert house.main([]) == 1
    assert house.main(["--update"]) == 0
    assert house.json.loads(exceptions.read_text())["upward_imports"] == ["a.py -> b"]
    assert house.main([]) == 0
    monkeypatch.setattr(house, "check_imports", lambda: iter(["a.py -> b", "new.py -> b"]))
    assert house.main(["--update"]) == 0
    assert house.main([]) == 1
