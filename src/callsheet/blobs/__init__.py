"""Bytes at rest."""
