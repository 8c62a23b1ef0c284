"""`tidemill.iterate`: programs that iterate on parts of a problem, with more or less synchronization.

| module   | what                                                            |
|----------|-----------------------------------------------------------------|
| `result` | what an iteration returns, with its account                     |
| `saved`  | checkpoints                                                     |
| `apart`  | workers that go on with the newest messages that they have      |
| `rounds` | rounds that all workers have in common, and `iterate` itself    |
"""

from tidemill._iterate.result import Iterated, IterationAccount
from tidemill._iterate.rounds import iterate

__all__ = ["Iterated", "IterationAccount", "iterate"]
