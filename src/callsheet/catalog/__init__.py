"""Workflows as files: one definition per TOML file, checked with the line and what to do."""

from callsheet.catalog.loader import CatalogError, load
from callsheet.catalog.source_file import Finding
from callsheet.catalog.validate import check

__all__ = ["CatalogError", "Finding", "check", "load"]
