"""Running streams: sinks, checkpoints, functions with state, metrics.

A stream is a native query here. `tidemill.dataset` has the methods that run one, `tidemill.stream` the sources and
windows to build one, and all public names.
"""
