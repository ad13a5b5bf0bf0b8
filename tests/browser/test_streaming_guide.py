"""The server and the page of the streaming guide run as printed."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page

from callsheet import Client
from tests.support.processes.cli_process import ServerProcess, clean_environment
from tests.support.tidiness.tidy import ROOT
from tests.support.wait import wait_until

PAGE = ROOT / "docs" / "guides" / "streaming.md"
PRICE = 3
"""Credits for one sketch."""


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.+?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def accepts_connections(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def guide_app(folder: Path, server_url: str, port: int) -> Iterator[None]:
    """Run `app.py` of the guide."""
    (folder / "app.py").write_text(block("python").replace("8000", str(port)))
    (folder / "index.html").write_text(block("html"))
    admin_key = (folder / "callsheet-data" / "admin.key").read_text().strip()
    with Client(server_url, admin_key) as admin:
        admin.wallets.top_up("eve", PRICE, idempotency_key="welcome")
        key = admin.keys.create("web", "client").secret
    internal_url = server_url.replace("127.0.0.1", "localhost")
    env = clean_environment() | {
        "CALLSHEET_URL": internal_url, "CALLSHEET_PUBLIC_URL": server_url, "CALLSHEET_API_KEY": key,
    }  # fmt: skip
    with subprocess.Popen([sys.executable, "app.py"], cwd=folder, env=env, stderr=subprocess.DEVNULL) as app:
        try:
            wait_until(lambda: accepts_connections(port))
            yield
        finally:
            app.terminate()


def test_the_page_of_the_guide_shows_progress_and_the_picture(
    page: Page, page_errors: list[str], tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "callsheet.toml"
    config.write_text(block("toml").replace("8000", str(port)))
    with (
        ServerProcess(tmp_path / "callsheet-data", "--config", config) as server,
        guide_app(tmp_path, server.url, port),
    ):
        page.goto(f"http://127.0.0.1:{port}/")
        page.click("button")
        page.wait_for_function("document.getElementById('status').textContent === 'job.completed'", timeout=60_000)
        page.wait_for_function("document.getElementById('picture').src.includes('/v1/files/')")
        page.wait_for_function("document.getElementById('picture').naturalWidth > 0")
        assert page.evaluate("document.getElementById('picture').src").startswith(f"{server.url}/v1/files/")
        assert page.evaluate("document.getElementById('bar').value") == 100
        page.click("button")
        page.wait_for_function("document.getElementById('status').textContent.includes('credits')")
    assert [text for text in page_errors if "favicon" not in text and "402" not in text] == []
