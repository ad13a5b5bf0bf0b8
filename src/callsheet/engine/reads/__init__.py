"""Readers of the database, on connections of their own: no read waits for a write."""
