"""Benchmarks of Callsheet, each beside the limit that it is compared with: `python -m bench`."""
