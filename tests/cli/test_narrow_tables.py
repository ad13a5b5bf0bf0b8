"""Tables on narrow terminals: an id, a time, a number is whole or not there; where no table fits, there are records."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_jobs import read_terminal
from tests.support.processes.live_server import LiveServer

CALLSHEET = Path(sys.executable).with_name("callsheet")
ID = r"[0-9a-f]{8}-[0-9a-f-]{27}"


def on_terminal(live_server: LiveServer, columns: int, *words: str, above: int = 0) -> list[str]:
    """Run a command on a terminal of so many columns, and return its lines as they stand there.

    So many above the table are sentences, which the terminal breaks.
    """
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if not name.startswith("CALLSHEET_")} | {
        "CALLSHEET_URL": live_server.url,
        "CALLSHEET_API_KEY": live_server.keys["admin"],
        "COLUMNS": str(columns),
        "TERM": "xterm",
    }
    with subprocess.Popen([CALLSHEET, *words], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        lines = re.sub(r"\x1b\[[0-9;]*m", "", read_terminal(ours)).splitlines()
    assert process.returncode == 0, lines
    assert max(map(len, lines[above:])) <= columns
    return lines


@pytest.mark.parametrize("columns", [40, 45, 50])
def test_where_no_table_fits_every_line_is_a_record(live_server: LiveServer, run: Run, columns: int) -> None:
    user = f"narrow-{columns}"
    run("wallet", "topup", user, "20")
    job = live_server.submit(user=user)["id"]
    lines = on_terminal(live_server, columns, "wallet", "show", user, above=1)
    records = "\n".join(lines[2:]).split("\n\n")
    entries = run("wallet", "show", user, "--json").json["entries"]
    assert [entry["amount"] for entry in entries] == [-3, 20]
    for record, entry in zip(records, entries, strict=True):
        for head in ("amount", "balance", "kind"):
            assert re.search(rf"^{head.upper()} +{entry[head]}$", record, re.MULTILINE), record
    assert job in records[0].split()
    assert job in " ".join(on_terminal(live_server, columns, "jobs", "--user", user)).split()
    keys = " ".join(on_terminal(live_server, columns, "keys", "list")).split()
    assert {key["id"] for key in run("keys", "list", "--json").json["keys"]} <= set(keys)
    live_server.work()


@pytest.mark.parametrize("columns", [60, 80])
def test_keys_wallets_and_files_keep_what_matters(
    live_server: LiveServer, run: Run, tmp_path: Path, columns: int
) -> None:
    key = run("keys", "create", "for the studio", "--role", "client", "--expires-in", "99999", "--json").json["key"][
        "id"
    ]
    run("keys", "revoke", key)
    lines = on_terminal(live_server, columns, "keys", "list")
    assert {"KEY", "NAME", "STATUS"} <= set(lines[0].split())
    (line,) = [line for line in lines if line.startswith(key)]
    assert "revoked" in line.split()
    assert all(re.match(rf"{ID}|\s", line) for line in lines[1:])
    assert all(re.fullmatch(r"[\w ]*", line) for line in lines[1:] if not re.match(ID, line)), "only names are broken"

    job = live_server.submit()["id"]
    live_server.work()
    lines = on_terminal(live_server, columns, "wallet", "show", "ann", above=1)
    assert {"NO", "KIND", "AMOUNT", "JOB"} <= set(lines[2].split())
    assert any(job in line.split() for line in lines)

    picture = tmp_path / "a-picture-with-a-name-that-is-rather-long.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1_000))
    file = run("files", "upload", picture, "--user", "narrow", "--json").json["files"][0]["id"]
    lines = on_terminal(live_server, columns, "files", "list", "--user", "narrow")
    (line,) = [line for line in lines if line.startswith(file)]
    assert line.split()[-1] == "ready" or "ready" in line.split()


def test_everything_is_shown_where_there_is_room(live_server: LiveServer, run: Run) -> None:
    run("keys", "create", "wide", "--role", "client", "--expires-in", "99999")
    lines = on_terminal(live_server, 200, "keys", "list")
    assert lines[0].split() == ["KEY", "NAME", "ROLE", "STATUS", "TENANT", "CREATED", "EXPIRES", "REVOKED"]
    assert re.search(r"active +default( +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d){2}", "\n".join(lines))
