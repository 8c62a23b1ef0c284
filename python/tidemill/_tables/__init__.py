"""Tables in memory, the engine of this process, and the actions that all workers perform together.

Nothing here depends on queries (`tidemill.dataset`), graphs or streams.
"""
