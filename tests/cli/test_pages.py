"""The command line's page names every command, and its examples of input are read as it says."""

from callsheet.cli.given import input_of
from tests.cli.tree import commands
from tests.support.catalogue import listed
from tests.support.tidy import ROOT

PAGE = ROOT / "docs" / "cli.md"


def test_every_command_is_on_the_page() -> None:
    names = {" ".join(("callsheet", *words)) for words, _ in commands()}
    assert len(names) > 25
    assert set(listed(PAGE)) == names


def test_the_examples_of_input_on_the_page_are_read_as_it_says() -> None:
    text = PAGE.read_text()
    for words, wanted in (
        (['{"prompt": "dunes"}'], {"prompt": "dunes"}),
        (["prompt=dunes", "seed:=7"], {"prompt": "dunes", "seed": 7}),
    ):
        assert all(word in text for word in words)
        assert input_of(words) == wanted
