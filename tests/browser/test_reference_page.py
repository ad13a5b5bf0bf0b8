"""The API reference page at /docs."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.processes.live_server import LiveServer


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data: Path = tmp_path_factory.mktemp("docs")
    with LiveServer(data / "callsheet.db", data) as started:
        yield started


@pytest.fixture
def docs(page: Page, live_server: LiveServer) -> Page:
    page.goto(f"{live_server.url}/docs")
    return page


def test_the_page_loads_from_its_own_server_only_and_without_errors(
    page: Page, live_server: LiveServer, page_errors: list[str]
) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{live_server.url}/docs")
    assert {
        f"{live_server.url}/docs",
        f"{live_server.url}/docs/reference.css",
        f"{live_server.url}/docs/reference.js",
    } <= set(requested)
    assert [url for url in requested if not url.startswith((f"{live_server.url}/", "data:"))] == []
    assert page_errors == []


def test_every_route_is_on_the_page_once_and_can_be_linked_to(docs: Page, live_server: LiveServer) -> None:
    document = httpx.get(f"{live_server.url}/openapi.json").json()
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    listed = docs.locator("article.route").evaluate_all("found => found.map(one => one.id)")
    assert sorted(listed) == sorted(names)
    docs.goto(f"{live_server.url}/docs#{names[-1]}")
    expect(docs.locator(f"#{names[-1]}")).to_be_in_viewport()


def test_the_search_shows_the_routes_with_every_word(docs: Page) -> None:
    everything = docs.locator("article:visible").count()
    docs.keyboard.press("/")
    docs.keyboard.type("approve stage")
    matches = docs.locator("article:visible")
    assert 0 < matches.count() < everything
    assert all("approve" in text.lower() and "stage" in text.lower() for text in matches.all_text_contents())
    docs.keyboard.press("Escape")
    expect(docs.locator("article:visible")).to_have_count(everything)
    docs.locator("#search").fill("no such word anywhere")
    expect(docs.locator("#nothing")).to_be_visible()


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_the_page_has_no_horizontal_overflow(docs: Page, width: int) -> None:
    docs.set_viewport_size({"width": width, "height": 800})
    inner, whole = docs.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollWidth]")
    assert whole <= inner


@pytest.mark.parametrize("width", [360, 390, 880])
def test_in_a_narrow_window_the_contents_open_link_to_a_route_and_close_again(docs: Page, width: int) -> None:
    docs.set_viewport_size({"width": width, "height": 800})
    contents = docs.get_by_role("navigation", name="Contents")
    expect(contents).to_be_hidden()
    docs.get_by_text("Contents", exact=True).click()
    expect(contents.get_by_role("link", name="openapi.json")).to_be_attached()
    contents.locator('a[href="#approve_stage"]').click()
    expect(docs.locator("#approve_stage h3")).to_be_in_viewport()
    expect(contents).to_be_hidden()
    docs.get_by_text("Contents", exact=True).click()
    docs.keyboard.press("Escape")
    expect(contents).to_be_hidden()


def test_the_contents_open_without_javascript(browser: Browser, live_server: LiveServer) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(f"{live_server.url}/docs")
    page.get_by_text("Contents", exact=True).click()
    expect(page.get_by_role("navigation", name="Contents").locator('a[href="#submit_job"]')).to_be_in_viewport()
    context.close()


@pytest.mark.parametrize("width", [360, 390])
def test_the_placeholder_of_the_search_fits_a_phone(docs: Page, width: int) -> None:
    docs.set_viewport_size({"width": width, "height": 800})
    available, needed = docs.evaluate(
        """() => {
            const search = document.getElementById("search"), style = getComputedStyle(search);
            const pen = document.createElement("canvas").getContext("2d");
            pen.font = style.font;
            const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
            return [search.clientWidth - padding, pen.measureText(search.placeholder).width];
        }"""
    )
    assert needed <= available


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_text_has_enough_contrast(docs: Page, scheme: str) -> None:
    """WCAG 2 AA requires a contrast of 4.5 for small text."""
    docs.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    colours = docs.evaluate(
        """() => [getComputedStyle(document.querySelector('.intro p')).color,
                  getComputedStyle(document.body).backgroundColor]"""
    )
    text, background = (_luminance(colour) for colour in colours)
    assert (max(text, background) + 0.05) / (min(text, background) + 0.05) >= 4.5
    assert (background < 0.2) == (scheme == "dark")


def _luminance(colour: str) -> float:
    """Return the relative luminance of `rgb(r, g, b)`, from 0 to 1."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
