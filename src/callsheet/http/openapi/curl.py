"""A request of the reference as a command of a shell, which a reader pastes as it is.

What the sample asks for is there or harmless in any house; ids are variables, because nobody has those of an example.
"""

import json
from typing import Any
from urllib.parse import urlencode

Node = dict[str, Any]

VARIABLES = {"job_id": "JOB", "task_id": "TASK", "file_id": "FILE", "key_id": "KEY_ID", "signed": "SIGNED"}
"""Parts of an address that a server makes up: a reader has them from an earlier answer."""
QUERIES = {"list_files": {"user": "ann"}}
"""Parameters without which an operation's sample would be refused."""
BYTES = "test"
"""What the sample of a file puts: the four bytes that it announces."""
START = """\
URL=http://127.0.0.1:8787              # what `callsheet up` printed
KEY=$(cat callsheet-data/admin.key)    # the operator's: may call all but a worker's routes
FLEET=$(cat callsheet-data/fleet.key)  # what workers register with

"""


def start(topup: tuple[str, str, Node]) -> str:
    """Return what to paste before anything else: where the house is, and credits for the user of the samples."""
    return START + curl(*topup)


def curl(method: str, path: str, operation: Node) -> str:
    """Return one request."""
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
