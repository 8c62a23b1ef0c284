"""Counts the words of text files, and prints the most frequent ones.

python examples/word_count.py FILE_OR_FOLDER...
tidemill run -n 4 examples/word_count.py FILE_OR_FOLDER...     on four workers

Without files it reads the hundred novels in $TIDEMILL_DATA or ../shared/data or, if they are not there, two lines of a poem.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tidemill as tm

DATA = Path(os.environ.get("TIDEMILL_DATA", Path(__file__).parents[1] / "../shared/data"))
NOVELS = DATA / "text/english_novels.txt.zst"
POEM = [
    "Water, water, every where, and all the boards did shrink;",
    "Water, water, every where, nor any drop to drink.",
]

if sys.argv[1:]:
    lines = tm.read_text(sys.argv[1:])
elif NOVELS.exists():
    lines = tm.read_text(NOVELS)
else:
    lines = tm.from_dict({"line": POEM})

words = (
    lines.select(word=tm.col("line").str.lower().str.replace_match(r"[^\p{L}\p{N}']+", " ").str.strip().str.split(" "))
    .explode("word")
    .filter(tm.col("word") != "")
    .group_by("word")
    .count()
)
words.sort("count", "word", descending=[True, False]).show(10)
