"""From files to recipes."""

from pathlib import Path

from callsheet.catalog.checking import recipes_of
from callsheet.catalog.sheets import Finding
from callsheet.core.recipe import Recipe


class CatalogError(Exception):
    """Files that are no workflows; every finding is in it."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


def load(*paths: Path) -> list[Recipe]:
    """Read workflow files, and every one in folders, by name; one that is none raises CatalogError with all findings.

    What is wrong with any of them keeps back all of them.
    """
    recipes, findings = recipes_of(paths)
    if findings:
        raise CatalogError(findings)
    return sorted(recipes, key=lambda recipe: recipe.name)
