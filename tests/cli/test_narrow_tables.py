"""Tables on narrow terminals: less important columns are left out, ids are never broken, and records replace tables."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.terminal import run_on_terminal, strip_styles
from tests.support.processes.live_server import LiveServer

ID = r"[0-9a-f]{8}-[0-9a-f-]{27}"


def table_lines(live_server: LiveServer, columns: int, *words: str, intro_lines: int = 0) -> list[str]:
    """Return the lines that a command prints on a terminal of so many columns.

    All of them fit but the first `intro_lines`: they are sentences, which the terminal wraps.
    """
    lines = strip_styles(run_on_terminal(live_server, *words, columns=columns)).splitlines()
    assert max(map(len, lines[intro_lines:])) <= columns
    return lines


@pytest.mark.parametrize("columns", [40, 45, 50])
def test_a_terminal_too_narrow_for_a_table_shows_records(live_server: LiveServer, run: Run, columns: int) -> None:
    user = f"narrow-{columns}"
    run("wallet", "topup", user, "20")
    job = live_server.submit(user=user)["id"]
    lines = table_lines(live_server, columns, "wallet", "show", user, intro_lines=1)
    records = "\n".join(lines[2:]).split("\n\n")
    entries = run("wallet", "show", user, "--json").json["entries"]
    assert [entry["amount"] for entry in entries] == [-3, 20]
    for record, entry in zip(records, entries, strict=True):
        for head in ("amount", "balance", "kind"):
            assert re.search(rf"^{head.upper()} +{entry[head]}$", record, re.MULTILINE), record
    assert job in records[0].split()
    assert job in " ".join(table_lines(live_server, columns, "jobs", "--user", user)).split()
    keys = " ".join(table_lines(live_server, columns, "keys", "list")).split()
    assert {key["id"] for key in run("keys", "list", "--json").json["keys"]} <= set(keys)
    live_server.work()


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_table_keeps_the_important_columns(
    live_server: LiveServer, run: Run, tmp_path: Path, columns: int
) -> None:
    created = run("keys", "create", "for the studio", "--role", "client", "--expires-in", "99999", "--json").json
    key = created["key"]["id"]
    run("keys", "revoke", key)
    lines = table_lines(live_server, columns, "keys", "list")
    assert {"KEY", "NAME", "STATUS"} <= set(lines[0].split())
    (line,) = [line for line in lines if line.startswith(key)]
    assert "revoked" in line.split()
    assert all(re.match(rf"{ID}|\s", line) for line in lines[1:])
    assert all(re.fullmatch(r"[\w ]*", line) for line in lines[1:] if not re.match(ID, line)), "only names are wrapped"

    job = live_server.submit()["id"]
    live_server.work()
    lines = table_lines(live_server, columns, "wallet", "show", "ann", intro_lines=1)
    assert {"NO", "KIND", "AMOUNT", "JOB"} <= set(lines[2].split())
    assert any(job in line.split() for line in lines)

    picture = tmp_path / "a-picture-with-a-name-that-is-rather-long.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1_000))
    file = run("files", "upload", picture, "--user", "narrow", "--json").json["files"][0]["id"]
    lines = table_lines(live_server, columns, "files", "list", "--user", "narrow")
    (line,) = [line for line in lines if line.startswith(file)]
    assert line.split()[-1] == "ready" or "ready" in line.split()


def test_a_wide_terminal_shows_every_column(live_server: LiveServer, run: Run) -> None:
    run("keys", "create", "wide", "--role", "client", "--expires-in", "99999")
    lines = table_lines(live_server, 200, "keys", "list")
    assert lines[0].split() == ["KEY", "NAME", "ROLE", "STATUS", "TENANT", "CREATED", "EXPIRES", "REVOKED"]
    assert re.search(r"active +default( +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d){2}", "\n".join(lines))
