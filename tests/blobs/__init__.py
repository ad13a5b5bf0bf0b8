"""Bytes at rest: one contract for every store."""
