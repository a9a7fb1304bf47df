"""Side-by-side benchmarks: Tidegate and its peers, on the same tables, in one run.

`make bench` runs everything; `python -m bench --help` lists what can be chosen. docs/benchmarks.md says how
things are measured and what the figures mean.
"""
