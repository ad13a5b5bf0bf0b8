"""Checks of the source code itself."""
