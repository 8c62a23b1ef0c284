"""The wheel, as `pip` installs it: what is not in it is missing everywhere but in this folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import launched
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "tidemill"
#: Linking and packing take seconds; only a compiler that has to begin anew takes longer.
BUILD_S = 1200
#: Its libraries need not be those of all Linuxes, nor its files be small.
GOES_NOWHERE = ("--auditwheel", "skip", "--compression-method", "stored")


def built() -> bool:
    """Whether `make setup` has compiled what is there now, so that a wheel has only to be packed."""
    return subprocess.run(["make", "-q", ".venv/.built"], cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not built():
        pytest.skip("what is compiled is not of these sources; `make setup` compiles them")
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--out", str(out), *GOES_NOWHERE],
        cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("tidemill-*.whl")
    return path


def test_it_has_all_modules_types_and_the_page(wheel: Path) -> None:
    """A file that git ignores, as all of the built page is, is left out unless it is asked for."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "-z", "."], cwd=PACKAGE, capture_output=True, text=True, check=True)
    assert not {f"tidemill/{name}" for name in tracked.stdout.split("\0") if (PACKAGE / name).is_file()} - names
    assert {"tidemill/py.typed", "tidemill/_tidemill.pyi", "tidemill/_tidemill.abi3.so"} <= names
    static = PACKAGE / "viz" / "static"
    pages = ["index.html", "library.html", "standalone/index.html"]
    assert {str(path.relative_to(PACKAGE.parent)) for path in static.rglob("*") if path.is_file()} <= names
    for page in pages:
        folder = static / page.partition("/")[0] if "/" in page else static
        named = re.findall(r'(?:src|href)="/(?:standalone/)?(assets/[\w.-]+)"', (static / page).read_text())
        assert len(named) > 1 and all((folder / name).is_file() for name in named), page
    assert [name for name in names if re.fullmatch(r"tidemill-[\d.]+\.dist-info/licenses/LICENSE", name)]
    # And nothing of what it is made with.
    strange = {name for name in names if not name.startswith(("tidemill/", "tidemill-"))}
    assert not strange and not [name for name in names if "node_modules" in name or name.endswith((".ts", ".pyc"))]


def test_it_works_by_itself(wheel: Path, tmp_path: Path) -> None:
    """Frames are written, and a page with them, by what was unpacked, far from this folder."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    program = (
        "import tidemill, tidemill.viz as viz, sys; assert tidemill.init().size == 1; "
        "print(tidemill.__file__); "
        "writer = viz.FrameWriter('map'); writer.write_frame([[0, 0, 0], [1, 1, 1]]); viz.export_html('map', 'map.html')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
        timeout=launched.PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "site" / "tidemill" / "__init__.py")
    assert (tmp_path / "map.html").stat().st_size > 100_000
