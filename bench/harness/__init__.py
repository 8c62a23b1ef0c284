"""Side-by-side benchmarks of Tidemill and its peers; `bench/run.py` is the entry."""
