"""Descriptions and examples of path parameters and headers."""

from typing import Any, NamedTuple

from callsheet.api.base import Example
from callsheet.http.server.route import Route


class ParameterDoc(NamedTuple):
    """Description and example of a path parameter or header."""

    description: str
    example: Any


PATH_DOCS: dict[str, ParameterDoc] = {
    "job_id": ParameterDoc("Id of the job.", Example.JOB_ID),
    "task_id": ParameterDoc("Id of the task.", Example.TASK_ID),
    "file_id": ParameterDoc("Id of the file.", Example.FILE_ID),
    "key_id": ParameterDoc("Id of the key. It is not the secret.", Example.KEY_ID),
    "signed": ParameterDoc("Signed part of the URL, as the server returned it.", "bXkgcGxhY2UgaW4gdGhlIGZvbGRlcg"),
    "stage_no": ParameterDoc("Number or name of the stage.", "1"),
    "tenant": ParameterDoc("Name of the tenant.", "acme"),
    "user": ParameterDoc("Your id of the user.", "ann"),
    "worker": ParameterDoc("Name of the worker.", "gpu-7"),
    "workflow": ParameterDoc("Name of the workflow.", "sketch"),
    "put_workflow.workflow": ParameterDoc("Name of the workflow.", "poster"),
}
"""Path parameters, by `operation.name` or by `name`.

Samples use what every server has, and change nothing that the demo needs.
"""

HEADER_DOCS: dict[str, ParameterDoc] = {
    "Callsheet-Tenant": ParameterDoc("Tenant to act for, with an operator key. Default: `default`.", "default"),
    "Idempotency-Key": ParameterDoc(
        "Makes the request idempotent, like `idempotency_key` in the body. Keys are unique per user of a tenant.",
        "order-4711",
    ),
    "If-None-Match": ParameterDoc("A known ETag. The response is 304 if it still matches.", '"1-2-1773480413589000"'),
    "Range": ParameterDoc("Byte range to return.", "bytes=0-1023"),
    "If-Range": ParameterDoc("A known ETag. If it no longer matches, Range is ignored.", '"1-2-1773480413589000"'),
    "Last-Event-ID": ParameterDoc("Resume after this event. A browser's EventSource sends it automatically.", "2"),
    "ETag": ParameterDoc("Version of the response. Send it as If-None-Match.", '"1-2-1773480413589000"'),
    "Location": ParameterDoc("URL of the resource.", f"/v1/jobs/{Example.JOB_ID}"),
    "Idempotent-Replay": ParameterDoc("`true` if the idempotency key had created this job before.", "true"),
    "Content-Disposition": ParameterDoc(
        "File name, and whether browsers show or save the file.", 'inline; filename="sketch.png"'
    ),
    "Accept-Ranges": ParameterDoc("The Range header is supported.", "bytes"),
    "Content-Range": ParameterDoc("With 206 and 416: the returned range and the total size.", "bytes 0-1023/4711"),
    "Retry-After": ParameterDoc("Seconds to wait before you retry.", "1"),
    "WWW-Authenticate": ParameterDoc("The server expects a bearer key.", "Bearer"),
    "Allow": ParameterDoc("Methods that the path supports.", "GET, HEAD, POST"),
    "X-Request-Id": ParameterDoc(
        "Id of the request in the server's log. The server uses yours if you send one.", "f5e31b5f0b9b2c77"
    ),
}


def path_doc(route: Route, name: str) -> ParameterDoc:
    """Return the documentation of a path parameter. A plugin's API may have parameters that are not listed here."""
    return PATH_DOCS.get(f"{route.name}.{name}") or PATH_DOCS.get(name) or ParameterDoc(f"The {name}.", name)


def header_doc(name: str) -> ParameterDoc:
    """Return the documentation of a header. A plugin's API may have headers that are not listed here."""
    return HEADER_DOCS.get(name) or ParameterDoc(f"The {name} header.", "example")
