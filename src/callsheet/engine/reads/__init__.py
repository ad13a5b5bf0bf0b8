"""Readers: connections that never wait behind a write."""
