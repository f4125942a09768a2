"""Benchmarks that compare in one run: `python -m benchmarks NAME [--json]`."""
