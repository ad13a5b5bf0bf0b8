"""Bounded queues: what an engine refuses while too much waits, and what goes first."""
