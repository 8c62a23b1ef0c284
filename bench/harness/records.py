"""The benchmark of records: many small ones through task graphs, put together as users of each system put them together.

Beside messages that are sent one by one (`exchange.py`): here Tidemill sends batches of many rows, a program by hand fills buffers, and
Flink packs its records by itself. All send the same records; the digest of what arrives must be the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .exchange import ALL, TIMEOUT_S, WORKERS, programs
from .once import in_turn, lasts, run_once
from .systems import present

PROGRAMS = programs("records", "RecordsFlink")
OPERATIONS = ("partition", "reduce", "broadcast")
RECORDS = {"full": 16_000_000, "quick": 4_000_000, "tiny": 1000}  # of each source; a job of fewer is mostly its start
ROUNDS = {"full": 5, "quick": 3, "tiny": 1}
# A function of Python for each record is what PyFlink would be measured by.
SYSTEMS_MEASURED = tuple(system for system in ALL if system != "pyflink")


def measure(name: str, systems: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs setting `name`; the raw results: of every operation the time of a record, digests and failures."""
    records, rounds = RECORDS[name], rounds or ROUNDS[name]
    known = ALL[:1] if name == "tiny" else SYSTEMS_MEASURED
    running = present(name, systems, known, PROGRAMS.missing, lambda line: say(f"records: {line}"))
    cases = [measure_case(operation, records, running, rounds, say) for operation in OPERATIONS if running]
    say(f"records: {len(cases)} cases, {rounds} rounds")
    return {"rounds": rounds, "workers": WORKERS, "records": records, "cases": cases}


def measure_case(
    operation: str, records: int, systems: Sequence[str], rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    def run(system: str, _: int) -> dict[str, Any]:
        found = run_once(PROGRAMS.launch(system, [operation, str(records)]), "rate_s", TIMEOUT_S)
        return {"record_s": found["rate_s"] / records, "digest": found["digest"]}

    found, failures = in_turn(systems, rounds, run, say, f"{operation} of records")
    digests = lasts(found.get("digest", {}))
    return {
        "operation": operation,
        "record_s": found.get("record_s", {}),
        "digests": digests,
        "failures": failures,
    }
