"""Measurements of the cost of a fusion; run `python -m benchmarks --help`."""
