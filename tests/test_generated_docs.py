"""Generated pages are fresh, and a stale one is found."""

import pytest

from tools import docs


def test_every_generated_page_is_fresh() -> None:
    assert sorted(docs.stale_pages()) == [], "run: make docs"


def test_a_stale_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(docs.PAGES, "reference/states.md", lambda text: text + "one more line\n")
    assert sorted(docs.stale_pages()) == ["reference/states.md"]
