"""`callsheet keys`."""

from tests.cli.conftest import Run, invoke_cli
from tests.support.processes.live_server import LiveServer


def test_keys_are_created_listed_and_revoked(live_server: LiveServer, run: Run) -> None:
    created = run("keys", "create", "for the studio", "--role", "client", "--json").json
    secret, key = created["secret"], created["key"]["id"]
    assert invoke_cli("jobs", "--url", live_server.url, "--api-key", secret).code == 0
    listed = run("keys", "list")
    assert key in listed.out
    assert "CREATED" in listed.out.splitlines()[0].split()
    assert secret not in listed.out + run("keys", "list", "--json").out
    assert run("keys", "revoke", key).out == f"Key {key} (for the studio) is revoked.\n"
    refused = invoke_cli("jobs", "--url", live_server.url, "--api-key", secret)
    assert (refused.code, refused.err.count("\n"), secret in refused.err) == (1, 1, False)
    lines = run("keys", "create", "another", "--role", "viewer").out.splitlines()
    assert (len(lines), "shown once" in lines[0], " " in lines[1]) == (2, True, False)
    assert run("keys", "create", "x", "--role", "king").code == 2


def test_an_operator_key_is_created_with_the_operator_option_only(live_server: LiveServer, run: Run) -> None:
    created = run("keys", "create", "second", "--role", "admin", "--operator", "--json", role="operator").json
    assert created["key"]["tenant"] == ""
    printed = run("keys", "create", "third", "--role", "admin", "--operator", role="operator").out
    assert "(operator, all tenants). The secret is shown once:" in printed
    roles = {line.split()[0]: line for line in run("keys", "list", role="operator").out.splitlines()}
    assert "operator" in roles[created["key"]["id"]].split()
    assert invoke_cli("workers", "--url", live_server.url, "--api-key", created["secret"]).code == 0
    for words in (["--role", "client", "--operator"], ["--role", "admin", "--operator", "--tenant", "default"]):
        assert run("keys", "create", "x", *words, role="operator").code == 2
    assert run("keys", "create", "x", "--role", "admin", "--operator").code == 1
    assert "--operator" in invoke_cli("keys", "create", "--help").out
