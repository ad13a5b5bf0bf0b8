"""Policies: pure functions that rank, estimate, explain and redact."""
