"""Workflow files: one definition per TOML file. Each problem is reported with its line and what to do."""

from callsheet.catalog.loader import CatalogError, load
from callsheet.catalog.workflow_file_checks import check
from callsheet.catalog.workflow_file_reader import Finding

__all__ = ["CatalogError", "Finding", "check", "load"]
