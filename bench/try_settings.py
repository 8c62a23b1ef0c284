"""Compares settings of the peers with each other, to find the best one for each: what `harness/systems.py` then uses.

    .venv/bin/python bench/try_settings.py --workers 2 [--transport shm] [--rounds 5]

Prints the least time of the rounds per point and setting, and each setting's geometric mean over that of the first.
"""

from __future__ import annotations

import argparse
import sys

from harness import comm, report
from harness.systems import SYSTEMS, System

# peer+name -> (further launcher options, further environment), by transport
VARIANTS: dict[str, dict[str, tuple[list[str], dict[str, str]]]] = {
    "shm": {
        "openmpi+ucx": (
            ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"],
            {"UCX_TLS": "posix,cma,self"},
        ),
        "openmpi+eager32k": (["--mca", "btl_vader_eager_limit", "32768"], {}),
        "openmpi+emulated": (["--mca", "btl_vader_single_copy_mechanism", "none"], {}),
        "openmpi+collsm": (["--mca", "coll_sm_priority", "90"], {}),
        "openmpi+multiple": ([], {"MPI4PY_RC_THREADS": "1"}),
        "openmpi5+unbound": (["--bind-to", "none"], {}),
        "openmpi5+ob1": (["--mca", "pml", "ob1", "--mca", "btl", "sm,self", "--mca", "smsc", "cma"], {}),
        "openmpi5+ob1eager8k": (
            [
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                "sm,self",
                "--mca",
                "smsc",
                "cma",
                "--mca",
                "btl_sm_eager_limit",
                "8192",
            ],
            {},
        ),
        "openmpi5+nocma": ([], {"UCX_TLS": "posix,self"}),
        "openmpi5+nohan": (["--mca", "coll", "^han"], {}),
        "openmpi5+collsm": (["--mca", "coll_sm_priority", "90"], {}),
        "mpich+own": ([], {"MPIR_CVAR_NOLOCAL": "0"}),
        "mpich+nocma": ([], {"UCX_TLS": "posix,self"}),
        "mpich+multiple": ([], {"MPI4PY_RC_THREADS": "1"}),
    },
    "tcp": {
        "openmpi+ucx": (
            ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"],
            {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"},
        ),
        "openmpi5+unbound": (["--bind-to", "none"], {}),
        "openmpi5+ucx": (
            ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"],
            {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"},
        ),
        "openmpi5+nohan": (["--mca", "coll", "^han"], {}),
        "openmpi+nodelay": (["--mca", "btl_tcp_eager_limit", "262144"], {}),
        "openmpi+buffers": (["--mca", "btl_tcp_sndbuf", "4194304", "--mca", "btl_tcp_rcvbuf", "4194304"], {}),
    },
}


def variant(name: str, options: list[str], env: dict[str, str]) -> System:
    base = SYSTEMS[name.split("+")[0]]

    def prefix(workers: int, transport: str) -> tuple[list[str], dict[str, str]]:
        argv, base_env = base.prefix(workers, transport)
        # Open MPI refuses an option given twice: the later one replaces ours.
        at = 0
        while at < len(options):
            name, length = (options[at : at + 2], 3) if options[at] == "--mca" else (options[at : at + 1], 2)
            places = [j for j in range(len(argv)) if argv[j : j + len(name)] == name]
            for place in reversed(places):
                argv = argv[:place] + argv[place + length :]
            at += length
        return [*argv, *options], {**base_env, **env}

    return System(name, base.launcher, base.python, prefix)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--transport", choices=("shm", "tcp"), default="shm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", choices=("openmpi", "openmpi5", "mpich"), default="openmpi")
    options = parser.parse_args()
    found = {name: v for name, v in VARIANTS[options.transport].items() if name.split("+")[0] == options.peer}
    SYSTEMS.update({name: variant(name, *settings) for name, settings in found.items()})
    plan = comm.Plan(
        systems=(options.peer, *found),
        workers=(options.workers,),
        transports=(options.transport,),
        operations=comm.OPERATIONS,
        sizes=(8, 4096, 64 << 10, 1 << 20, 16 << 20),
        rounds=options.rounds,
        turn_s=0.05,
        wait_s=0.1,
    )
    results = comm.measure(plan, lambda line: print(line, file=sys.stderr))["configurations"][0]
    least = {point: {n: min(s) for n, s in times.items()} for point, times in results["samples_s"].items()}
    rows = [[point, *(report.duration(t[n]) if n in t else "-" for n in plan.systems)] for point, t in least.items()]
    means = []
    for name in plan.systems:
        ratios = [
            times[name] / times[options.peer] for times in least.values() if name in times and options.peer in times
        ]
        means.append(f"{report.geometric_mean(ratios):.2f}")
    print(report.table(["point", *plan.systems], [*rows, ["geometric mean", *means]]))


main()
