"""`callsheet audit`."""

from tests.cli.conftest import Run


def test_the_audit_log_is_listed_newest_first(run: Run) -> None:
    for name in ("first", "second"):
        run("keys", "create", name, "--role", "viewer")
    lines = run("audit", "--limit", "2").out.splitlines()
    assert lines[0].split()[:4] == ["AT", "BY", "ACTION", "SUBJECT"]
    assert ["second" in lines[1], "first" in lines[2], len(lines)] == [True, True, 3]
    [line] = run("audit", "--limit", "1", "--json").json["entries"]
    assert run("audit", "--subject", line["subject"], "--json").json["entries"] == [line]
