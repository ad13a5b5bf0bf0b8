"""Workflows as files: one recipe per TOML file, checked with the line and what to do."""

from callsheet.catalog.checking import Finding, check
from callsheet.catalog.loading import CatalogError, load

__all__ = ["CatalogError", "Finding", "check", "load"]
