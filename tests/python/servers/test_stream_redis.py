"""A sink to Redis whose job is killed and resumes with other workers."""

from __future__ import annotations

from pathlib import Path

import launched
import local_servers

COUNTS_IN_REDIS = """
import sys
import tidemill as tm
numbers = tm.stream.from_generator(3000, rows=20_000, splits=2, keys=5).select("key", n=tm.lit(1))
sink = tm.stream.to_redis(sys.argv[1], id="rescaled", key="key", prefix="rescaled:", increment="n")
numbers.write_stream(sink, checkpoint=tm.stream.Checkpoint(sys.argv[2], interval="100ms"), guarantee="exactly_once")
"""


def test_what_was_prepared_is_committed_by_other_copies(redis_server: local_servers.Redis, tmp_path: Path) -> None:
    """Several epochs are durable but not committed when everything is killed. Of one copy's epochs, the last must not
    be committed first: Redis, like Kafka, would then be assumed to have the others.
    """
    app, checkpoint = tmp_path / "app.py", tmp_path / "checkpoints"
    app.write_text(COUNTS_IN_REDIS)
    words = ["--threads", "1", app, redis_server.url, checkpoint]
    epochs, hidden = checkpoint / "epochs", checkpoint / "hidden"

    def prepared() -> set[str]:
        return {file.name.partition("-")[0] for file in (checkpoint / "state").glob("*/*")}

    with redis_server.client() as redis:
        job = launched.start("run", "-n", "1", *words)
        try:
            launched.wait_until(lambda: len(launched.epochs(checkpoint)) > 1, "two checkpoints")
            # No checkpoint can become durable while sinks keep preparing; when one does, nothing can be committed.
            epochs.rename(hidden)
            epochs.touch()
            before = prepared()
            launched.wait_until(lambda: len(prepared() - before) > 2, "three epochs that are prepared")
            redis.client_pause(600_000, all=False)
            epochs.unlink()
            hidden.rename(epochs)
            known = launched.epochs(checkpoint)
            launched.wait_until(lambda: len(launched.epochs(checkpoint) - known) > 0, "a checkpoint")
        finally:
            # Its workers die with it; its guard stays until it has cleaned up.
            children = launched.children(job.pid)
            job.kill()
            job.communicate(timeout=launched.PATIENCE_S)
            launched.wait_until(lambda: not any(map(launched.is_running, children)), "the workers' end")
            redis.client_unpause()

        def committed() -> int:
            return sum(int(redis.hget(key, "n") or 0) for key in redis.keys("rescaled:*"))

        assert committed() < 20_000
        done = launched.run("run", "-n", "2", *words)
        assert done.returncode == 0, done.stderr.decode()
        assert committed() == 20_000
