"""`tidemill.iterate`: programs that iterate on parts of a problem, with more or less synchronization.

| module    | what                                                             |
|-----------|------------------------------------------------------------------|
| `_result` | what an iteration returns, with its account                      |
| `_saved`  | checkpoints                                                      |
| `_async`  | workers that go on with the newest messages they have            |
| `_rounds` | rounds that all workers have in common, and `iterate` itself     |
"""

from tidemill._iterate._result import Iterated, IterationAccount
from tidemill._iterate._rounds import iterate

__all__ = ["Iterated", "IterationAccount", "iterate"]
