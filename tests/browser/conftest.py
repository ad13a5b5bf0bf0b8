"""A Chromium for a module, a fresh profile per test, and the errors of its pages."""

import os
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.processes import chromium


@pytest.fixture(scope="module")
def browser(report: Callable[[str], None]) -> Iterator[Browser]:
    """One browser per module: its driver keeps an event loop running in this thread, which other tests must not see."""
    found = chromium.find(report)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=found.program, args=list(chromium.FLAGS), env={**os.environ, **found.environment}
        )
        report(f"Chromium {launched.version} for the tests: {found.program}")
        yield launched
        launched.close()


@pytest.fixture
def page_errors() -> list[str]:
    """Errors that the pages of a test wrote to their console, among them blocked requests."""
    return []


@pytest.fixture
def page(browser: Browser, page_errors: list[str]) -> Iterator[Page]:
    context = browser.new_context()
    opened = context.new_page()
    opened.on("console", lambda line: page_errors.append(line.text) if line.type == "error" else None)
    opened.on("pageerror", lambda error: page_errors.append(str(error)))
    yield opened
    context.close()
