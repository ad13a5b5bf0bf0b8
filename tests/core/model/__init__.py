"""Statuses, ids, workflow definitions and other values."""
