"""`tools/keep-times`: a source must look as old as its build only where its content is what was built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "keep-times"
LONG_AGO = 10**18


class Clone:
    """A clone with two sources, and the build folder and record that clones share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.sources = [self.folder / "crates" / name for name in ("same.rs", "other.rs")]
        self.record, self.target = folder / "sources", folder / "target"
        self.sources[0].parent.mkdir(parents=True)
        for source in self.sources:
            source.write_text(source.name)
        subprocess.run(["git", "init", "-q", "."], cwd=self.folder, check=True)
        subprocess.run(["git", "add", "."], cwd=self.folder, check=True)
        self.fingerprint = self.target / "release" / ".fingerprint" / "crate-0" / "invoked.timestamp"
        self.fingerprint.parent.mkdir(parents=True)

    def begin(self) -> list[int]:
        """Set the times as the start of a run does, and return them, in nanoseconds."""
        for source in self.sources:
            os.utime(source, ns=(LONG_AGO, LONG_AGO))
        subprocess.run([sys.executable, str(TOOL), str(self.record), str(self.target)], cwd=self.folder, check=True)
        return [source.stat().st_mtime_ns for source in self.sources]

    def build(self, *, end: bool = True) -> None:
        """Build, and touch the record as the end of a run does."""
        self.fingerprint.touch()
        later = self.record.stat().st_mtime_ns + 10**9
        os.utime(self.fingerprint, ns=(later, later))
        if end:
            os.utime(self.record, ns=(later, later))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_only_a_changed_source_becomes_new(clone: Clone) -> None:
    first = clone.begin()
    assert min(first) > LONG_AGO
    clone.build()
    clone.sources[1].write_text("changed")
    second = clone.begin()
    assert second[0] == first[0]
    assert second[1] > first[1]
    # Going back to the first content is a change, too: the last build was of the second.
    clone.build()
    clone.sources[1].write_text(clone.sources[1].name)
    assert clone.begin()[1] > second[1]


def test_all_sources_become_new_after_a_build_that_nobody_noted(clone: Clone) -> None:
    first = clone.begin()
    clone.build(end=False)
    assert min(clone.begin()) > max(first)
