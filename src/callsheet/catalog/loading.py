"""From files to recipes."""

from pathlib import Path

from callsheet.catalog.checking import Finding, recipes_of
from callsheet.core.recipe import Recipe


class CatalogError(Exception):
    """Files that are no workflows; every finding is in it."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


def load(folder: Path) -> list[Recipe]:
    """Read every workflow of a folder, by name; a file that is none raises CatalogError with all findings."""
    recipes, findings = recipes_of([folder])
    if findings:
        raise CatalogError(findings)
    return sorted(recipes, key=lambda recipe: recipe.name)
