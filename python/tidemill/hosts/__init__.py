"""Clusters of emulated hosts on this machine: real TCP through links whose bandwidth you set, cut and heal.

>>> import tidemill.hosts
>>> with tidemill.hosts.up(2, bandwidth="100mbit") as cluster:  # doctest: +SKIP
...     cluster.set(1, incoming="20mbit")

The guide is ``docs/hosts.md``; ``tidemill hosts --help`` lists the commands.
"""

from tidemill.hosts._cluster import Cluster, Host, Traffic, find, names, up
from tidemill.hosts._commands import HostsError

__all__ = ["Cluster", "Host", "HostsError", "Traffic", "find", "names", "up"]
