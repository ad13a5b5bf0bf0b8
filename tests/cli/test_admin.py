"""Money, keys, workers and workflows from the shell."""

import json
import re
from pathlib import Path

from tests.cli.conftest import Run, invoke_cli
from tests.support.processes.live_server import LiveServer

SOUND = '[[stages]]\nname = "draw"\nkind = "gpu"\n'


def test_a_wallet_is_filled_once_per_key_and_shown(run: Run) -> None:
    assert run("wallet", "topup", "bob", "20", "--idempotency-key", "i1").out == "bob has 20 credits.\n"
    again = run("wallet", "topup", "bob", "20", "--idempotency-key", "i1", "--json")
    assert again.json == {"user": "bob", "balance": 20, "reserved": 0, "replay": True}
    shown = run("wallet", "show", "bob")
    assert shown.out.startswith("bob has 20 credits, and 0 reserved")
    assert "topup" in shown.out
    found = run("wallet", "show", "bob", "--json").json
    assert (found["wallet"]["balance"], [entry["amount"] for entry in found["entries"]]) == (20, [20])
    assert run("wallet", "show", "bob", "--limit", "0", "--json").json["entries"] == []
    assert run("wallet", "topup", "bob", "0").code == 2


def test_a_wallet_is_corrected_up_and_down_with_a_reason_and_a_time(run: Run) -> None:
    assert run("wallet", "topup", "dan", "20").out == "dan has 20 credits.\n"
    assert run("wallet", "adjust", "dan", "-12", "--reason", "chargeback", "--idempotency-key", "c1").code == 0
    again = run("wallet", "adjust", "dan", "-12", "--reason", "chargeback", "--idempotency-key", "c1")
    assert again.out == "dan has 8 credits; this idempotency key was used before.\n"
    assert run("wallet", "adjust", "dan", "1", "--reason", "rounding", "--json").json["balance"] == 9
    assert run("wallet", "adjust", "dan", "1").code == 2
    heads, _, correction, _ = run("wallet", "show", "dan").out.splitlines()[2:]
    assert heads.split()[:4] == ["NO", "AT", "KIND", "AMOUNT"]
    assert re.match(r"2 +\d{4}-\d\d-\d\dT[\d:]{8}[+-]\d\d:\d\d +adjust +-12 ", correction)


def test_a_job_is_priced_before_it_is_submitted(run: Run) -> None:
    said = run("quote", "sketch", "--user", "nobody", "--input", "prompt=dunes").out.splitlines()
    assert said[0] == "sketch costs 3 credits; nobody has 0, which is not enough."
    made = run("quote", "sketch", "--user", "ann", "--input", "prompt=dunes", "--json").json
    assert (made["price"], made["affordable"], bool(made["quote"])) == (3, True, True)
    assert run("quote", "nothing", "--user", "ann").code == 1


def test_keys_are_made_listed_and_revoked(live_server: LiveServer, run: Run) -> None:
    made = run("keys", "create", "for the studio", "--role", "client", "--json").json
    secret, key = made["secret"], made["key"]["id"]
    assert invoke_cli("jobs", "--url", live_server.url, "--api-key", secret).code == 0
    listed = run("keys", "list")
    assert key in listed.out
    assert "CREATED" in listed.out.splitlines()[0].split()
    assert secret not in listed.out + run("keys", "list", "--json").out
    assert run("keys", "revoke", key).out == f"Key {key} (for the studio) is revoked.\n"
    refused = invoke_cli("jobs", "--url", live_server.url, "--api-key", secret)
    assert (refused.code, refused.err.count("\n"), secret in refused.err) == (1, 1, False)
    shown = run("keys", "create", "another", "--role", "viewer").out.splitlines()
    assert (len(shown), "shown once" in shown[0], " " in shown[1]) == (2, True, False)
    assert run("keys", "create", "x", "--role", "king").code == 2


def test_workflows_of_a_server_are_listed(run: Run) -> None:
    assert "sketch" in run("workflows", "list").out
    (sketch,) = [one for one in run("workflows", "list", "--json").json["workflows"] if one["name"] == "sketch"]
    assert (sketch["price"], sketch["stages"]) == (3, ["draw"])


def test_a_workflow_is_shown_with_its_stages_and_its_input(run: Run) -> None:
    shown = run("workflows", "show", "sketch").out
    assert shown.startswith(
        "sketch is version 1, for 3 credits.\n\nSTAGE  KIND  TASKS  APPROVAL\ndraw   draw  1      no"
    )
    schema = {"type": "object", "properties": {"prompt": {"type": "string"}}}
    assert json.loads(shown.partition("Its input, as JSON Schema:\n")[2]) == schema
    assert run("workflows", "show", "sketch", "--json").json["definition"]["input_schema"] == schema
    assert run("workflows", "show", "nothing").err == "callsheet: There is no workflow nothing.\n"


def test_another_operator_is_made_by_name(live_server: LiveServer, run: Run) -> None:
    made = run("keys", "create", "second", "--role", "admin", "--operator", "--json", role="operator").json
    assert made["key"]["tenant"] == ""
    roles = {line.split()[0]: line for line in run("keys", "list", role="operator").out.splitlines()}
    assert "operator" in roles[made["key"]["id"]].split()
    assert invoke_cli("workers", "--url", live_server.url, "--api-key", made["secret"]).code == 0
    for words in (["--role", "client", "--operator"], ["--role", "admin", "--operator", "--tenant", "default"]):
        assert run("keys", "create", "x", *words, role="operator").code == 2
    assert run("keys", "create", "x", "--role", "admin", "--operator").code == 1
    assert "--operator" in invoke_cli("keys", "create", "--help").out


def test_workflow_files_are_put_on_a_server_all_or_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "poster.toml").write_text(f"price = 4\n{SOUND}[retry]\nattempts_max = 2\n")
    (tmp_path / "banner.toml").write_text(SOUND)
    said = "banner is version 1, for 0 credits.\nposter is version 1, for 4 credits.\n"
    for _ in range(2):  # an equal one changes nothing
        done = run("workflows", "apply", tmp_path, role="operator")
        assert (done.code, done.out) == (0, said), done.err
    put = run("workflows", "apply", tmp_path / "poster.toml", "--json", role="operator").json["workflows"]
    assert [(one["name"], one["version"], one["price"]) for one in put] == [("poster", 1, 4)]
    (tmp_path / "banner.toml").write_text(f"price = 9\n{SOUND}")
    (tmp_path / "poster.toml").write_text(f"prise = 3\n{SOUND}")
    broken = run("workflows", "apply", tmp_path, role="operator")
    assert (broken.code, broken.out) == (1, "")
    assert "poster.toml:1: There is no field 'prise' here." in broken.err
    listed = run("workflows", "list", "--json").json["workflows"]
    assert {one["name"]: one["price"] for one in listed if one["name"] in {"poster", "banner"}} == {
        "poster": 4, "banner": 0,
    }  # fmt: skip


def test_workflow_files_are_checked_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "sketch.toml").write_text(SOUND)
    sound = invoke_cli("workflows", "check", tmp_path)
    assert (sound.code, sound.out) == (0, "All workflows are valid.\n")
    assert invoke_cli("workflows", "check", tmp_path, "--json").json == {"valid": True, "findings": []}
    (tmp_path / "poster.toml").write_text(f"prise = 3\n{SOUND}")
    broken = invoke_cli("workflows", "check", tmp_path)
    assert broken.code == 1
    assert f"{tmp_path / 'poster.toml'}:1: There is no field 'prise' here. Did you mean 'price'?" in broken.out
    assert broken.out.endswith("1 finding.\n")
    found = invoke_cli("workflows", "check", tmp_path, "--json")
    assert (found.code, found.json["valid"], found.json["findings"][0]["line"]) == (1, False, 1)
    assert invoke_cli("workflows", "check").code == 2


def test_the_description_of_the_api_is_printed() -> None:
    done = invoke_cli("openapi")
    assert (done.code, done.json["openapi"]) == (0, "3.1.0")
