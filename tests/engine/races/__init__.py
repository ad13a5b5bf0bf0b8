"""Races between several servers on PostgreSQL."""
