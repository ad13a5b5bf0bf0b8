"""Scenarios of claims, leases, attempts and the order and limits of work."""
