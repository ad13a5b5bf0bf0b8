"""Measurements of Callsheet beside their limits, in one run: `python -m bench`."""
