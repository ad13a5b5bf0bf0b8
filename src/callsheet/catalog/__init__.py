"""Workflows as files: one recipe per TOML file, checked with the line and what to do."""

from callsheet.catalog.checking import check
from callsheet.catalog.loading import CatalogError, load
from callsheet.catalog.sheets import Finding

__all__ = ["CatalogError", "Finding", "check", "load"]
