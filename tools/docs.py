"""Generated documentation pages: `python -m tools.docs` writes all of them, and a test fails when one is stale."""

import sys
from collections.abc import Callable
from pathlib import Path

from callsheet.cli import settings_and_workflow_docs_page as settings_page
from callsheet.client import docs_page as client_page
from callsheet.core.model import state_diagrams
from callsheet.http.openapi import markdown_page
from tools import layers, requirements

DOCS = Path(__file__).parents[1] / "docs"

PAGES: dict[str, Callable[[str], str]] = {
    "design/architecture.md": layers.update_page,
    "reference/client.md": client_page.render_page,
    "reference/http.md": lambda _: markdown_page.page(),
    "reference/requirements.md": lambda _: requirements.render_page(),
    "reference/settings.md": lambda _: settings_page.page(),
    "reference/states.md": lambda _: state_diagrams.page(),
    "reference/workflows.md": settings_page.update_fields_section,
}
"""Page below docs/, and the function that takes its current text and returns the text that it should have."""


def stale_pages() -> dict[str, str]:
    """Return the pages whose text differs from what the source generates, with the new text."""
    current = {name: _read(name) for name in PAGES}
    generated = {name: render(current[name]) for name, render in PAGES.items()}
    return {name: text for name, text in generated.items() if text != current[name]}


def _read(name: str) -> str:
    path = DOCS / name
    return path.read_text() if path.exists() else ""


def main() -> None:
    """Write every stale page and print its name."""
    for name, text in stale_pages().items():
        (DOCS / name).write_text(text)
        sys.stdout.write(f"wrote docs/{name}\n")


if __name__ == "__main__":
    main()
