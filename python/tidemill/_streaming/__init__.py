"""Streams that run: sinks, checkpoints, functions with state, figures.

A stream is a native query here. `tidemill.dataset` has the methods that run one, `tidemill.stream` the sources and windows to make one of, and
all public names.
"""
