"""What an iteration returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Iterated", "IterationAccount"]


@dataclass
class IterationAccount:
    """What an iteration cost on this worker.

    Attributes
    ----------
    sync : {"global", "partial", "async"}
    local_sweeps : int or None
        Maximum number of sweeps in a round; None if only the local test limits them.
    rounds : int
        Number of rounds, with those before a checkpoint. One more exchange comes before the first round. With
        ``"async"``, workers have different numbers; otherwise all have the same.
    resumed_round : int
        The round of the checkpoint from which the iteration resumed; 0 if it started from the beginning. The figures
        below count from there.
    sweeps : int
        Number of calls of ``local``; with items, of passes of ``lmap`` or ``gmap`` over all items.
    bytes_sent : int
        Size of the pickled messages to other workers; for arrays that are summed, the size of the arrays.
    exchange_seconds : float
        Time in exchanges, including waiting for other workers.
    compute_seconds : float
        Time in your functions, and for packing messages.
    checkpoint_seconds : float
        Time for saving checkpoints.
    """

    sync: str
    local_sweeps: int | None
    rounds: int = 0
    resumed_round: int = 0
    sweeps: int = 0
    bytes_sent: int = 0
    exchange_seconds: float = 0.0
    compute_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


@dataclass
class Iterated:
    """Result of `iterate`.

    Attributes
    ----------
    state : object
        This worker's part; for items with keys, a dict.
    converged : bool
        Whether ``until`` ended the iteration, not ``max_rounds``; the same on all workers.
    account : IterationAccount
        What the iteration cost.
    """

    state: Any
    converged: bool
    account: IterationAccount
