"""Sample requests as curl commands that you can paste into a shell.

Samples use workflows and users that exist on every server, and do not change what the demo needs. Ids are shell
variables.
"""

import json
from typing import Any
from urllib.parse import urlencode

Node = dict[str, Any]

VARIABLES = {"job_id": "JOB", "task_id": "TASK", "file_id": "FILE", "key_id": "KEY_ID", "signed": "SIGNED"}
"""Path parameters that the server generates: the reader takes them from earlier responses."""
QUERIES = {"list_files": {"user": "ann"}}
"""Required query parameters of samples."""
BYTES = "test"
"""The file that the sample uploads: the four bytes that it declares."""
START = """\
URL=http://127.0.0.1:8787              # printed by `callsheet up`
KEY=$(cat callsheet-data/admin.key)    # operator key: every route except those of workers
FLEET=$(cat callsheet-data/fleet.key)  # fleet key: workers register with it

"""


def start(topup: tuple[str, str, Node]) -> str:
    """Return the first sample: it sets URL and keys, and tops up the wallet of the samples' user."""
    return START + curl(*topup)


def curl(method: str, path: str, operation: Node) -> str:
    """Return the sample of an operation."""
    lines = [f'curl "$URL{_url_path(path, operation)}"']
    if method != "get":
        lines[0] = f'curl -X {method.upper()} "$URL{_url_path(path, operation)}"'
    if operation.get("security") != []:
        lines.append(f'-H "Authorization: Bearer ${_bearer(operation)}"')
    if body := operation.get("requestBody"):
        lines.append('-H "Content-Type: application/json"')
        example = json.dumps(body["content"]["application/json"]["example"], indent=2, ensure_ascii=False)
        text = example.replace("'", "'\\''").replace("\n", "\n  ")
        lines.append(f"-d '{text}'")
    elif method == "put":
        lines += ['-H "Content-Type: text/plain"', f"-d {BYTES}"]
    return " \\\n  ".join(lines)


def _url_path(path: str, operation: Node) -> str:
    for parameter in operation["parameters"]:
        if parameter.get("in") == "path":
            name = parameter["name"]
            variable = VARIABLES.get(name)
            path = path.replace(f"{{{name}}}", f"${variable}" if variable else str(parameter["example"]))
    query = QUERIES.get(operation["operationId"])
    return f"{path}?{urlencode(query)}" if query else path


def _bearer(operation: Node) -> str:
    return {"worker": "FLEET", "machine": "TOKEN"}.get("".join(operation["x-roles"]), "KEY")
