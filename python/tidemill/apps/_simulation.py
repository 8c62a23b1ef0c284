"""Simulation requests: by default, a workload in its default size on a cluster without faults."""

from __future__ import annotations

from typing import Any

from tidemill import _tidemill

__all__ = ["simulation_request"]

_UNLESS_TOLD: dict[str, Any] = {
    "racks": 1,
    "host_of": (),
    "oversubscription": 1.0,
    "algorithm": None,
    "fanout": None,
    "skew": 0.0,
    "window_bytes": None,
    "table": None,
    "slow": (),
    "noise": 0.0,
    "round_trips_s": (),
    "failures": (),
    "failure_timeout_s": 10.0,
    "shared_cores": None,
    "seed": 1,
}


def simulation_request(
    workload: str, workers: int, hosts: int, parameters: dict[str, Any], **told: Any
) -> dict[str, Any]:
    """Return the complete request for `_tidemill.simulate`, with the costs and rates from a file of parameters."""
    request: dict[str, Any] = _tidemill.simulate_defaults(workload)
    for part in ("costs", "rates"):
        request[part].update(parameters.get(part, {}))
    return {**request, **_UNLESS_TOLD, "workload": workload, "workers": workers, "hosts": hosts, **told}
