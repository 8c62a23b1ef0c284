"""Makes an inverted index: for each word, the documents that contain it. Prints the words that most documents contain.

python examples/inverted_index.py FILE...                    each file is a document
tidemill run -n 4 examples/inverted_index.py FILE...         on four workers

Without files, the documents are the 40,000 tweets in $TIDEMILL_DATA or ../shared/data or, if these are not there, three proverbs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tidemill as tm

DATA = Path(os.environ.get("TIDEMILL_DATA", Path(__file__).parents[1] / "../shared/data"))
TWEETS = DATA / "tweets/crisis_tweets_2012_2013.csv.gz"
PROVERBS = ["A rolling stone gathers no moss.", "Leave no stone unturned.", "No news is good news."]

if sys.argv[1:]:
    files = [tm.read_text(path).with_columns(document=tm.lit(Path(path).name)) for path in sys.argv[1:]]
    texts = files[0].union(*files[1:]).rename({"line": "text"})
elif TWEETS.exists():
    tweets = tm.read_csv(TWEETS, newlines_in_values=True)
    texts = tweets.select("text", document=tm.functions.row_number().over(order_by=["created_at", "text"]))
else:
    texts = tm.from_dict({"text": PROVERBS, "document": list(range(len(PROVERBS)))})

word = tm.col("text").str.lower().str.replace_match(r"[^\p{L}\p{N}']+", " ").str.strip().str.split(" ")
postings = texts.select("document", word=word).explode("word").filter(tm.col("word") != "").distinct()
document = tm.col("document")
index = postings.group_by("word").agg(documents=tm.count(), found_in=document.to_list("document"))

top = index.sort("documents", "word", descending=[True, False]).limit(10)
top.select(
    "word", "documents", found_in=tm.functions.scalar("array_slice", tm.col("found_in"), 1, 6).list.join(" ")
).show()
