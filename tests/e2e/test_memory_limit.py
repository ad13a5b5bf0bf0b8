"""A server with a memory limit survives expensive schemas and inputs, and more requests than it can handle."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes.cli_process import ServerProcess

MEMORY_KILOBYTES = 3 * 1024 * 1024
NODE = {"$ref": "#/$defs/node"}
CHILD = {"type": "object", "properties": {"a": NODE}}
SCHEMA = {
    "$defs": {"node": {"oneOf": [{**CHILD, "required": ["a"]}, {**CHILD, "required": ["a", "b"]}, {"type": "string"}]}},
    **NODE,
}

CONNECTIONS, REQUESTS_PER_CONNECTION = 400, 10
OVERLOAD_CONFIG = "[http]\nwrites_in_progress_max = 16\n"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", ulimit_options=f"-v {MEMORY_KILOBYTES}") as server:
        headers = {"authorization": f"Bearer {server.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
            yield client


def test_a_deep_input_of_a_recursive_schema_is_refused_and_the_server_keeps_responding(client: httpx.Client) -> None:
    definition = {"stages": [{"name": "s", "kind": "draw"}], "input_schema": SCHEMA}
    client.put("/v1/workflows/tree", json={"definition": definition}).raise_for_status()
    input: Any = 1
    for _ in range(40):
        input = {"a": input}
    for path in ("/v1/jobs", "/v1/quotes"):
        refused = client.post(path, json={"workflow": "tree", "user": "ann", "input": input})
        assert (refused.status_code, refused.json()["code"]) == (422, "input_too_large")
    assert client.get("/healthz").status_code == 200


def test_a_schema_whose_references_multiply_is_refused(client: httpx.Client) -> None:
    links = {f"n{no}": {"oneOf": [{"$ref": f"#/$defs/n{no + 1}"}, {"$ref": f"#/$defs/n{no + 1}"}]} for no in range(60)}
    schema = {"$defs": {**links, "n60": {"type": "integer"}}, "$ref": "#/$defs/n0"}
    definition = {"stages": [{"name": "s", "kind": "draw"}], "input_schema": schema}
    refused = client.put("/v1/workflows/chain", json={"definition": definition})
    assert (refused.status_code, refused.json()["code"]) == (422, "schema_too_large")


def test_a_schema_over_the_limit_of_values_is_refused(client: httpx.Client) -> None:
    definition = {"stages": [{"name": "s", "kind": "draw"}], "input_schema": {"enum": list(range(100_000))}}
    refused = client.put("/v1/workflows/list", json={"definition": definition})
    assert (refused.status_code, refused.json()["code"]) == (422, "schema_too_large")


def test_every_request_of_an_overload_is_answered_and_every_accepted_job_exists(tmp_path: Path) -> None:
    config = tmp_path / "callsheet.toml"
    config.write_text(OVERLOAD_CONFIG)
    options = ("--no-demo-workflows", "--config", config)
    with ServerProcess(tmp_path / "data", *options, ulimit_options=f"-v {MEMORY_KILOBYTES}") as server:
        headers = {"authorization": f"Bearer {server.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
            definition = {"stages": [{"name": "s", "kind": "draw"}]}
            client.put("/v1/workflows/sketch", json={"definition": definition}).raise_for_status()
            statuses, job_ids = asyncio.run(_overload(client.base_url.port or 0, server.key))
            assert set(statuses) == {200, 201, 503}
            assert statuses.total() == CONNECTIONS * REQUESTS_PER_CONNECTION
            assert statuses[200] == CONNECTIONS  # health checks
            assert all(client.get(f"/v1/jobs/{job_id}").status_code == 200 for job_id in job_ids)
            assert len(job_ids) == statuses[201]
            assert client.post("/v1/jobs", json={"workflow": "sketch", "user": "ann"}).status_code == 201


async def _overload(port: int, key: str) -> tuple[Counter[int], list[str]]:
    """Send requests on many connections at once; return the statuses of all responses, and the ids of created jobs."""
    statuses: Counter[int] = Counter()
    job_ids: list[str] = []
    body = b'{"workflow": "sketch", "user": "ann"}'
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\n"
    submit = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def send_all() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in (*[submit] * (REQUESTS_PER_CONNECTION - 1), health):
            writer.write(request)
            response = (await reader.readuntil(b"\r\n\r\n")).lower()
            content = await reader.readexactly(int(response.partition(b"content-length: ")[2].split(b"\r", 1)[0]))
            status = int(response[9:12])
            statuses[status] += 1
            if status == 201:
                job_ids.append(json.loads(content)["id"])
            assert (b"retry-after: 1\r\n" in response) == (status == 503)
        writer.close()

    await asyncio.gather(*(send_all() for _ in range(CONNECTIONS)))
    return statuses, job_ids
