"""What the fusion costs, measured: `python -m benchmarks --help`."""
