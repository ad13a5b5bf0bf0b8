"""Queries about the fleet: workers, statistics, scaling signals."""
