"""The cost of a fusion, measured: `python -m benchmarks --help`."""
