"""Where a download is saved: safe names, free names, and files that exist already."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from callsheet.client import Client, File
from tests.client.both_clients import ClientFactory
from tests.client.file_transfer.range_server import BODY, OTHER, RangeServer, record


def test_a_downloaded_file_has_the_usual_permissions_of_a_new_file(client_of: ClientFactory, tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    with RangeServer([]) as stub:
        saved = client_of(stub.url).files.download(record(), tmp_path)
    assert saved.stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize(("name", "saved"), [
    ("..", "file"), (".", "file"), ("...", "file"), (".bashrc", "bashrc"), ("..x", "x"), ("/etc/passwd", "passwd"),
    ("../../up.png", "up.png"), ("a b.png", "a b.png"), ("-rf", "-rf"), ("", "f1"),
    ("a\u202egnp.exe", "a_gnp.exe"), ("\x1b[2J\n\u200b.png", "_[2J__.png"),
])  # fmt: skip
def test_a_file_name_from_the_server_stays_in_the_folder_and_is_never_hidden(
    client_of: ClientFactory, tmp_path: Path, name: str, saved: str
) -> None:
    """A download into a home folder must not replace a file such as `.bashrc`."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / ".bashrc").write_text("mine")
    with RangeServer([]) as stub:
        path = client_of(stub.url).files.download(replace(record(), name=name), folder)
    assert (path, path.read_bytes()) == (folder / saved, BODY)
    assert (folder / ".bashrc").read_text() == "mine"
    assert {one.name for one in folder.iterdir()} == {".bashrc", saved}
    assert [one.name for one in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize("file", [record(), "a.bin"], ids=["record", "id"])
def test_existing_files_of_a_folder_are_kept_and_equal_bytes_are_saved_once(
    client_of: ClientFactory, tmp_path: Path, file: File | str
) -> None:
    (tmp_path / "a.bin").write_bytes(OTHER)
    (tmp_path / "a-2.bin").mkdir()
    (tmp_path / "a-3.bin").symlink_to("nowhere")
    with RangeServer([]) as stub:
        client = client_of(stub.url)
        saved = client.files.download(file, tmp_path)
        assert (saved, saved.read_bytes()) == (tmp_path / "a-4.bin", BODY)
        assert client.files.download(file, tmp_path) == saved
        assert len(stub.requests) == (1 if isinstance(file, File) else 2), (
            "a file with a known digest is not fetched again"
        )
    assert (tmp_path / "a.bin").read_bytes() == OTHER
    assert {path.name for path in tmp_path.iterdir()} == {"a.bin", "a-2.bin", "a-3.bin", "a-4.bin"}


def test_a_file_is_replaced_with_overwrite_or_by_its_full_path(client_of: ClientFactory, tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with RangeServer([]) as stub:
        client = client_of(stub.url)
        target.write_bytes(OTHER)
        assert client.files.download(record(), tmp_path, overwrite=True) == target
        assert target.read_bytes() == BODY
        target.write_bytes(OTHER)
        assert client.files.download(record(), target) == target
        assert target.read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_concurrent_downloads_of_two_files_with_one_name_are_both_kept(tmp_path: Path) -> None:
    def both() -> Iterator[bytes]:
        """Send a file, and download another with the same name in the middle of it."""
        yield BODY[:100_000]
        assert client.files.download(record(OTHER), tmp_path).name == "a.bin"
        yield BODY[100_000:]

    responses: Iterator[Any] = iter([both(), OTHER])
    with Client(
        "http://x", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=next(responses)))
    ) as client:
        assert client.files.download(record(), tmp_path).name == "a-2.bin"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": OTHER, "a-2.bin": BODY}


def test_a_free_name_is_found_without_support_for_hard_links(
    client_of: ClientFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError("hard links are not supported")

    monkeypatch.setattr("os.link", no_links)
    (tmp_path / "a.bin").write_bytes(OTHER)
    with RangeServer([]) as stub:
        assert client_of(stub.url).files.download("a.bin", tmp_path).read_bytes() == BODY
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": OTHER, "a-2.bin": BODY}
