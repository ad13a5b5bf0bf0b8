"""Load workflow definitions from files."""

from pathlib import Path

from callsheet.catalog.workflow_file_checks import load_definitions
from callsheet.catalog.workflow_file_reader import Finding
from callsheet.core.model.workflow_definition import WorkflowDefinition


class CatalogError(Exception):
    """Workflow files are not valid. `findings` lists every problem."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


def load(*paths: Path) -> list[WorkflowDefinition]:
    """Read workflow files and the files in folders; return their definitions, sorted by name.

    If one file is not valid, none is returned: it raises `CatalogError` with all findings.
    """
    definitions, findings = load_definitions(paths)
    if findings:
        raise CatalogError(findings)
    return sorted(definitions, key=lambda definition: definition.name)
