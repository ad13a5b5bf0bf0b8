"""Workflow files: loading them, and every way to get one wrong."""
