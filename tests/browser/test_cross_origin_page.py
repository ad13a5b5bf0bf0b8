"""A product page of another origin streams events and transfers files of its user directly."""

import base64
import hashlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from playwright.sync_api import Error, Page

from tests.support.processes.cli_process import ServerProcess

PICTURE = b"\x89PNG\r\n\x1a\n not much of a picture"
PAGE = b"<!doctype html><title>A product</title><link rel=icon href=data:,>"


class Product(http.server.BaseHTTPRequestHandler):
    """The web page of a product that uses Callsheet."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def origins() -> Iterator[list[str]]:
    """Two web sites. The server allows the first one with CORS."""
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Product) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def up(origins: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in its own process, with the demo workflows."""
    folder = tmp_path_factory.mktemp("cross-origin")
    config = folder / "callsheet.toml"
    config.write_text(f'[http]\ncors_origins = ["{origins[0]}"]\n')
    with ServerProcess(folder / "data", "--config", config) as started:
        yield started


@pytest.fixture
def product(page: Page, origins: list[str]) -> Page:
    page.goto(origins[0])
    return page


def token(up: ServerProcess, user: str = "demo") -> str:
    with up.client() as client:
        return client.tokens.create(user).token


WATCH = """([url, token, job]) => new Promise((resolve, reject) => {
  const seen = [];
  const source = new EventSource(`${url}/v1/jobs/${job}/events?token=${token}`);
  const record = (event) => {
    seen.push({id: event.lastEventId, type: event.type});
    if (event.type === "job.completed") { source.close(); resolve(seen); }
  };
  for (const type of ["job.created", "task.progress", "task.completed", "job.completed"])
    source.addEventListener(type, record);
})"""
SHOW = """async ([url, token, job]) => {
  const headers = {authorization: `Bearer ${token}`};
  const outputs = await (await fetch(`${url}/v1/jobs/${job}/outputs`, {headers})).json();
  const file = outputs.outputs[0].files[0];
  const picture = new Image();
  picture.crossOrigin = "anonymous";
  picture.src = `${url}/v1/files/${file.id}?token=${token}`;
  await picture.decode();
  document.body.append(picture);
  const bytes = await (await fetch(picture.src)).arrayBuffer();
  const digest = [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))];
  const hex = digest.map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [picture.naturalWidth, picture.naturalHeight, file.media_type, hex === file.sha256];
}"""
FETCH = """async ([url, token, path]) => {
  const response = await fetch(`${url}${path}`, {headers: {authorization: `Bearer ${token}`}});
  return [response.status, response.headers.get("etag"), await response.json()];
}"""
PUT = """async ([url, method, headers, body]) => {
  const bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
  return (await fetch(url, {method, headers, body: bytes})).status;
}"""


def test_a_page_streams_a_job_to_its_end_and_shows_its_picture(
    product: Page, up: ServerProcess, page_errors: list[str]
) -> None:
    with up.client() as client:
        job = client.jobs.submit("sketch", user="demo", input={"prompt": "a lighthouse at dusk"})
    arguments = [up.url, token(up), job.id]
    seen = product.evaluate(WATCH, arguments)
    assert [seen[0]["type"], seen[-1]["type"]] == ["job.created", "job.completed"]
    assert len({one["id"] for one in seen}) == len(seen)
    assert product.evaluate(SHOW, arguments) == [640, 400, "image/png", True]
    assert page_errors == []


def test_a_page_reads_its_users_jobs_and_no_others(product: Page, up: ServerProcess) -> None:
    with up.client() as client:
        job = client.jobs.submit("sketch", user="demo", input={"prompt": "dunes"})
        client.jobs.wait(job.id)
    status, etag, body = product.evaluate(FETCH, [up.url, token(up), f"/v1/jobs/{job.id}"])
    assert (status, body["status"], bool(etag)) == (200, "completed", True)
    status, _, body = product.evaluate(FETCH, [up.url, token(up, "eve"), f"/v1/jobs/{job.id}"])
    assert (status, body["code"]) == (404, "job_not_found")


def test_a_page_uploads_a_file_to_a_signed_url(product: Page, up: ServerProcess, page_errors: list[str]) -> None:
    # R164
    body = {
        "user": "demo", "name": "dot.png", "media_type": "image/png", "bytes": len(PICTURE),
        "sha256": hashlib.sha256(PICTURE).hexdigest(),
    }  # fmt: skip
    with httpx.Client(base_url=up.url, headers={"authorization": f"Bearer {up.key}"}) as backend:
        created = backend.post("/v1/files", json=body).raise_for_status().json()
        upload = created["upload"]
        url = urljoin(up.url, upload["url"])
        arguments = [url, upload["method"], upload["headers"], base64.b64encode(PICTURE).decode()]
        status = product.evaluate(PUT, arguments)
        assert (status, page_errors) == (204, [])
        finished = backend.post(f"/v1/files/{created['file']['id']}/finish").raise_for_status().json()
    assert (finished["status"], finished["bytes"]) == ("ready", len(PICTURE))


def test_a_page_of_an_origin_that_is_not_allowed_reads_nothing(
    page: Page, up: ServerProcess, origins: list[str]
) -> None:
    page.goto(origins[1])
    with pytest.raises(Error, match="Failed to fetch"):
        page.evaluate(FETCH, [up.url, token(up), "/v1/me"])
