"""A server with a memory limit survives schemas and inputs that are expensive to validate or to explain."""

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
