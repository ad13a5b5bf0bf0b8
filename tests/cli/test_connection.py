"""How a command finds its server and API key, and the errors if it finds none."""

import json
from pathlib import Path

import pytest

from callsheet.cli.server_process import lock_directory
from tests.cli.conftest import connection_options, invoke_cli, write_server_note
from tests.client.stub_server import ScriptedResponse, StubServer
from tests.support.processes.live_server import LiveServer


def test_options_take_precedence_over_the_environment_and_the_environment_over_the_data_folder(
    live_server: LiveServer, tmp_path: Path
) -> None:
    url, key = live_server.url, live_server.keys["operator"]
    unreachable = {"CALLSHEET_URL": "http://127.0.0.1:1", "CALLSHEET_API_KEY": "none"}
    assert invoke_cli("workers", "--url", url, "--api-key", key, env=unreachable).code == 0
    folder = write_server_note(tmp_path, "http://127.0.0.1:1", "none")
    with lock_directory(tmp_path):
        assert (
            invoke_cli("workers", "--data-dir", folder, env={"CALLSHEET_URL": url, "CALLSHEET_API_KEY": key}).code == 0
        )
        assert invoke_cli("workers", "--data-dir", write_server_note(tmp_path, url, key)).code == 0
        assert invoke_cli("workers", "--data-dir", folder, env={"CALLSHEET_API_KEY": "wrong"}).code == 1


def test_the_key_of_a_killed_server_is_not_sent_to_another_process_on_its_port(
    tmp_path: Path,
) -> None:
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {"workers": [], "next": None})]
        refused = invoke_cli("workers", "--data-dir", write_server_note(tmp_path, stub.url, "secret"))
        assert (refused.code, stub.requests) == (3, [])
    assert f"No server found in {tmp_path}. Start one with `callsheet up --data-dir {tmp_path}`" in refused.err


def test_the_key_of_a_data_folder_is_not_sent_to_the_server_of_the_url_option(tmp_path: Path) -> None:
    folder = write_server_note(tmp_path, "http://127.0.0.1:1", "secret")
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {"workers": [], "next": None})]
        listed = invoke_cli("workers", "--data-dir", folder, "--url", stub.url)
        assert (listed.code, "The one inside `callsheet up` is not listed." in listed.out) == (0, True)
        assert "authorization" not in stub.requests[0].headers


def test_the_key_of_a_data_folder_is_sent_to_its_server_if_the_url_names_it(
    live_server: LiveServer, tmp_path: Path
) -> None:
    folder = write_server_note(tmp_path, live_server.url, live_server.keys["operator"])
    words = ("workers", "--data-dir", folder)
    with lock_directory(tmp_path):
        assert invoke_cli(*words, env={"CALLSHEET_URL": f"{live_server.url}/"}).code == 0
        assert invoke_cli(*words, "--url", live_server.url).code == 0
        assert invoke_cli(*words, "--url", live_server.url.replace("127.0.0.1", "localhost")).code == 1
    assert invoke_cli(*words, "--url", live_server.url).code == 1, "no server runs on the folder"


@pytest.mark.parametrize("words", [["workers"], ["submit", "sketch", "--user", "ann"], ["wallet", "show", "ann"]])
def test_without_a_server_a_command_exits_with_3_and_one_sentence(words: list[str], tmp_path: Path) -> None:
    unknown = invoke_cli(*words, "--data-dir", tmp_path)
    assert (unknown.code, unknown.out, unknown.err.count("\n")) == (3, "", 1)
    assert f"No server found in {tmp_path}. Start one with `callsheet up --data-dir {tmp_path}`" in unknown.err
    silent = invoke_cli(*words, "--url", "http://ann:password@127.0.0.1:1", "--api-key", "secret")
    assert (silent.code, silent.out, silent.err.count("\n")) == (3, "", 1)
    assert silent.err.startswith("callsheet: No response from http://127.0.0.1:1")
    (tmp_path / "server.json").write_text("{")
    assert invoke_cli(*words, "--data-dir", tmp_path).code == 3


def test_a_data_folder_without_a_running_server_suggests_to_start_it(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        stopped = invoke_cli("workers", "--data-dir", write_server_note(tmp_path, "http://127.0.0.1:1", "secret"))
    assert (stopped.code, stopped.err.count("\n")) == (3, 1)
    assert stopped.err.endswith(f" Start it with `callsheet up --data-dir {tmp_path}`.\n")
    assert "Start it" not in invoke_cli("workers", "--url", "http://127.0.0.1:1").err


def test_a_missing_api_key_is_reported_with_the_option_and_the_variable(live_server: LiveServer) -> None:
    keyless = invoke_cli("jobs", "--url", live_server.url)
    assert (keyless.code, keyless.err.count("\n")) == (1, 1)
    assert f"{live_server.url} requires an API key. Pass --api-key, or set CALLSHEET_API_KEY." in keyless.err


def test_an_operator_chooses_the_tenant_with_an_option(live_server: LiveServer) -> None:
    job = live_server.submit("other client")["id"]
    for tenant in ("other", "default"):
        options = [*connection_options(live_server, "operator"), "--tenant", tenant]
        found = invoke_cli("jobs", "--json", *options).json["jobs"]
        assert (job in [one["id"] for one in found]) == (tenant == "other")
    live_server.work(worker=job)


@pytest.mark.parametrize("url", ["nonsense", "localhost:8000", "http://", "http://x:port", "http://ann:password@[::1"])
def test_an_invalid_url_is_a_usage_error(url: str, tmp_path: Path) -> None:
    for words in (["workers"], ["demo", "--data-dir", tmp_path / "data"]):
        wrong = invoke_cli(*words, "--url", url)
        assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)
        assert "Write http://HOST:PORT" in wrong.err
        assert "password" not in wrong.err
    assert json.loads(invoke_cli("workers", "--url", url, "--json").err)["code"] == "invalid_url"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("words", [["up"], ["serve"], ["demo"], ["jobs"], ["verify"], ["worker", "studio:worker"]])
def test_an_empty_folder_name_is_a_usage_error(words: list[str]) -> None:
    wrong = invoke_cli(*words, "--data-dir", "")
    assert (wrong.code, "The folder name is empty" in wrong.err) == (2, True)


def test_a_response_from_another_kind_of_server_is_reported_in_one_sentence() -> None:
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, "<html>")]
        other = invoke_cli("workers", "--url", stub.url)
    assert (other.code, other.err.count("\n")) == (1, 1)
    assert "Check that the URL is a Callsheet server's" in other.err


def test_an_unknown_id_is_named_in_the_error(live_server: LiveServer) -> None:
    options = connection_options(live_server)
    for words in (["jobs", "show"], ["jobs", "why"], ["watch"]):
        assert invoke_cli(*words, "j-404", *options) == (1, "", "callsheet: There is no job j-404.\n")
    assert invoke_cli("files", "show", "f-404", *options).err == "callsheet: There is no file f-404.\n"
    assert invoke_cli("jobs", "show", "", *options) == (
        1,
        "",
        "callsheet: '' is not a valid id or name. Pass a non-empty id or name.\n",
    )


def test_the_tenant_option_is_sent_as_a_header() -> None:
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {"workers": [], "next": None})]
        invoke_cli("workers", "--url", stub.url, "--tenant", "studio")
        assert stub.requests[-1].headers["callsheet-tenant"] == "studio"
