"""Helpers that create, send and finish uploads over HTTP."""

import hashlib
from typing import Any

import httpx

from callsheet.blobs import object_keys
from callsheet.core.model.workflow_definition import WorkflowDefinition
from tests.support.processes.live_server import TENANT, LiveServer

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 300
OPEN = WorkflowDefinition(name="open", inline=True)


def upload_body(body: bytes = PICTURE, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(body).hexdigest()
    return {"user": "ann", "name": "a.png", "media_type": "image/png", "bytes": len(body), "sha256": digest} | more


def create_upload(live_server: LiveServer, body: bytes = PICTURE, role: str = "client", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = (
        live_server.client(role).post("/v1/files", json=upload_body(body, **more)).raise_for_status().json()
    )
    return made


def put(live_server: LiveServer, upload: dict[str, Any], body: bytes = PICTURE) -> httpx.Response:
    """Send bytes with the method, URL and headers of an upload, without an API key."""
    return live_server.client(None).request(upload["method"], upload["url"], headers=upload["headers"], content=body)


def finish(live_server: LiveServer, file_id: str, role: str = "client") -> httpx.Response:
    return live_server.client(role).post(f"/v1/files/{file_id}/finish")


def upload_file(live_server: LiveServer, body: bytes = PICTURE, role: str = "client", **more: Any) -> dict[str, Any]:
    new = create_upload(live_server, body, role, **more)
    put(live_server, new["upload"], body).raise_for_status()
    done: dict[str, Any] = finish(live_server, new["file"]["id"], role).raise_for_status().json()
    return done


def key_of(file: dict[str, Any], tenant: str = TENANT) -> str:
    return object_keys.upload_key(tenant, file["id"])


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["code"])


def input_with_files(*names: str) -> dict[str, Any]:
    return {"prompt": "x", "pictures": [{"$file": name} for name in names]}
