"""Crashes of processes and of PostgreSQL."""
