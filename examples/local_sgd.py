"""Local SGD: each worker trains a model on its own rows, and the workers average their models every few steps.

tidemill run -n 2 examples/local_sgd.py          logistic regression on generated rows

Plain SGD averages after each step, partial synchronization after 8: an eighth of the exchanges for the same number of steps.
"""

from typing import Any

import numpy as np
import tidemill as tm

ROWS, FEATURES, BATCH, STEPS, RATE = 4000, 20, 64, 400, 0.5


def main() -> None:
    job = tm.init()
    truth = np.random.default_rng(0).normal(size=FEATURES)
    chance = np.random.default_rng([1, job.rank])
    x = chance.normal(size=(ROWS, FEATURES))
    y = (chance.random(ROWS) < 1 / (1 + np.exp(-x @ truth))).astype(float)

    def step(model: Any, mean: Any) -> Any:
        """A step of this worker alone; `mean` is what the last exchange found."""
        weights, number = model
        rows = np.random.default_rng([2, job.rank, number]).integers(ROWS, size=BATCH)
        gap = 1 / (1 + np.exp(-x[rows] @ weights)) - y[rows]
        return weights - RATE / (1 + 0.02 * number) * x[rows].T @ gap / BATCH, number + 1

    for sync, local_sweeps in (("global", 1), ("partial", 8)):
        found = tm.iterate(
            (np.zeros(FEATURES), 0),
            local=step,
            boundary=lambda model: model[0],
            receive=lambda model, total: (total / job.size, model[1]),
            sync=sync,
            local_sweeps=local_sweeps,
            max_rounds=STEPS // local_sweeps,
        )
        weights, _ = found.state
        right = np.mean(job.comm.allgather(float(((x @ weights > 0) == y).mean())))
        account = found.account
        if job.rank == 0:
            print(
                f"{sync}: {account.rounds} rounds, {account.sweeps} steps, {account.bytes_sent:,} bytes, {right:.1%} right, "
                f"{account.exchange_seconds:.3f} s in exchange, {account.compute_seconds:.3f} s in steps"
            )


if __name__ == "__main__":
    main()
