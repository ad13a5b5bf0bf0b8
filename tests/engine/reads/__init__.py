"""Readers and the event feed."""
