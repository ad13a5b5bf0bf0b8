"""From files to recipes."""

from pathlib import Path

from callsheet.catalog.source_file import Finding
from callsheet.catalog.validate import load_definitions
from callsheet.core.model.workflow_definition import WorkflowDefinition


class CatalogError(Exception):
    """Files that are no workflows; every finding is in it."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


def load(*paths: Path) -> list[WorkflowDefinition]:
    """Read workflow files, and every one in folders, by name; one that is none raises CatalogError with all findings.

    What is wrong with any of them keeps back all of them.
    """
    definitions, findings = load_definitions(paths)
    if findings:
        raise CatalogError(findings)
    return sorted(definitions, key=lambda definition: definition.name)
