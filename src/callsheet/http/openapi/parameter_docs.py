"""Descriptions and examples of path parameters and headers."""

from typing import Any, NamedTuple

from callsheet.api.shared_fields import Example
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
    "user": ParameterDoc("Your id for the user.", "ann"),
    "worker": ParameterDoc("Name of the worker.", "gpu-7"),
    "workflow": ParameterDoc("Name of the workflow.", "sketch"),
    "put_workflow.workflow": ParameterDoc("Name of the workflow.", "poster"),
}
"""Path parameters, by `operation.name` or by `name`.

Samples use workflows and users that exist on every server, and do not change what the demo needs.
"""

HEADER_DOCS: dict[str, ParameterDoc] = {
    "Callsheet-Tenant": ParameterDoc("Tenant to act for, with an operator key. Default: `default`.", "default"),
    "Idempotency-Key": ParameterDoc(
        "Makes the request idempotent: the same key has its effect once. Same as `idempotency_key` in the body.",
        "order-4711",
    ),
    "If-None-Match": ParameterDoc("A known ETag. The response is 304 if it still matches.", '"1-2-1773480413589000"'),
    "Range": ParameterDoc("Byte range to return, such as `bytes=0-1023`.", "bytes=0-1023"),
    "If-Range": ParameterDoc("A known ETag. If it no longer matches, Range is ignored.", '"1-2-1773480413589000"'),
    "Last-Event-ID": ParameterDoc("Resume after this event. A browser's EventSource sends it automatically.", "2"),
    "ETag": ParameterDoc(
        "Version of the resource. Send it as If-None-Match to get a 304 while it is unchanged.",
        '"1-2-1773480413589000"',
    ),
    "Location": ParameterDoc(
        "URL of the created resource, or to which a redirect leads.", f"/v1/jobs/{Example.JOB_ID}"
    ),
    "Idempotent-Replay": ParameterDoc("`true` if the idempotency key had created this job before.", "true"),
    "Content-Disposition": ParameterDoc(
        "File name, and whether browsers show or save the file.", 'inline; filename="sketch.png"'
    ),
    "Accept-Ranges": ParameterDoc("`bytes`: the route supports the Range header.", "bytes"),
    "Content-Range": ParameterDoc("With 206 and 416: the returned range and the total size.", "bytes 0-1023/4711"),
    "Retry-After": ParameterDoc("With 429 and 503: seconds to wait before you retry.", "1"),
    "WWW-Authenticate": ParameterDoc("With 401: send the key as `Authorization: Bearer`.", "Bearer"),
    "Allow": ParameterDoc("With 405: methods that the path supports.", "GET, HEAD, POST"),
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
