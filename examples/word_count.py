"""Counts the words of text files and prints the most frequent ones.

python word_count.py FILE_OR_FOLDER...
"""

from __future__ import annotations

import sys

import tidemill as tm

words = (
    tm.read_text(sys.argv[1:])
    .select(word=tm.col("line").str.lower().str.replace_match(r"[^\p{L}\p{N}']+", " ").str.strip().str.split(" "))
    .explode("word")
    .filter(tm.col("word") != "")
    .group_by("word")
    .count()
)
words.sort("count", "word", descending=[True, False]).show(10)
