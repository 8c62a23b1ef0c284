"""Summarizes a web server's access log (Apache's common or combined format): requests by status and hour, and pages.

python examples/log_analysis.py access.log...
tidemill run -n 4 examples/log_analysis.py access.log...     on four workers

Without files it reads the log of a small site in $TIDEMILL_DATA or ../shared/data or, if it is not there, sixty generated lines.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tidemill as tm

DATA = Path(os.environ.get("TIDEMILL_DATA", Path(__file__).parents[1] / "../shared/data"))
SITE = DATA / "weblog/apache_access_2015.log.gz"
MADE_UP = [
    f'192.0.2.{n % 7} - - [17/May/2015:1{n % 3}:0{n % 6}:00 +0000] "GET /page/{n % 4} HTTP/1.1" '
    f"{404 if n % 9 == 0 else 200} {100 * n}"
    for n in range(60)
]
LINE = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) ([^" ]+)[^"]*" (\d{3}) (\d+|-)'

if sys.argv[1:]:
    lines = tm.read_text(sys.argv[1:])
elif SITE.exists():
    lines = tm.read_text(SITE)
else:
    lines = tm.from_dict({"line": MADE_UP})

# The parts of a line in parentheses as a list; null if a line does not match.
parts = lines.select(part=tm.functions.scalar("regexp_match", tm.col("line"), LINE))
part = tm.col("part").list
requests = (
    parts.filter(tm.col("part").is_not_null())
    .select(
        host=part.get(0),
        time=part.get(1).str.to_datetime("%d/%b/%Y:%H:%M:%S %z"),
        page=part.get(3).str.split_part("?", 0),
        status=part.get(4).cast("int64"),
        bytes=part.get(5).cast("int64", strict=False),
    )
    # Parse once, for three tables.
    .cache()
)

status, size = tm.col("status"), tm.col("bytes")
by_status = requests.group_by("status").agg(requests=tm.count(), bytes=size.sum().fill_null(0))
by_status.sort("status").show()

by_hour = requests.group_by(tm.col("time").dt.hour().alias("hour")).agg(
    requests=tm.count(), hosts=tm.col("host").n_unique()
)
by_hour.sort("hour").show(24)

pages = requests.group_by("page").agg(requests=tm.count(), failed=tm.count(where=status >= 400))
pages.sort("requests", "page", descending=[True, False]).show(10)
