"""Tables in memory, the engine of this process, and what all workers do with them together.

Nothing here knows of queries (`tidemill.dataset`), graphs or streams.
"""
