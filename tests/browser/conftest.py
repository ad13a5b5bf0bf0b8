"""A Chromium for a module, a fresh profile per test, and whatever its pages complained about."""

import os
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.processes import chromium


@pytest.fixture(scope="module")
def browser(report: Callable[[str], None]) -> Iterator[Browser]:
    """One for a module: its driver leaves an event loop running in this thread, which other tests must not see."""
    found = chromium.find(report)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=found.program, args=list(chromium.FLAGS), env={**os.environ, **found.environment}
        )
        report(f"Chromium {launched.version} for the tests: {found.program}")
        yield launched
        launched.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the pages of a test wrote to their console as errors, and what they asked of other places in vain."""
    return []


@pytest.fixture
def page(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    context = browser.new_context()
    made = context.new_page()
    made.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    yield made
    context.close()
