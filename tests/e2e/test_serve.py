"""`callsheet serve` and `callsheet work`: servers without a worker, workers without a server, one database."""

import json
from pathlib import Path

import httpx
import pytest

from callsheet.client import Client
from tests.support.running import Running, Up, run

MODULE = '''"""A worker of one's own."""

from callsheet.worker import Context, Worker

worker = Worker("mine")


@worker.task("shout")
def shout(ctx: Context) -> str:
    ctx.save("said.txt", ctx.input.upper().encode(), "text/plain")
    return ctx.input.upper()
'''
SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "shouting.py").write_text(MODULE)
    return tmp_path


def test_a_module_of_handlers_works_in_a_process_of_its_own(place: str, module: Path) -> None:
    database = [] if place.endswith(".db") else ["--database", place]
    data = module / "data"
    with Up(data, *database, command="serve") as server, server.client() as client:
        client.put_workflow("shout", {"stages": [{"name": "shout", "kind": "shout"}]})
        job = client.submit("shout", user="ann", input="hello")
        words = ["work", "--module", "shouting:worker", "--data", data, *database]
        with Running(*words, "--json", log=module / "work.log", cwd=module) as working:
            told = json.loads(working.line())
            assert (told["kinds"], told["pid"]) == (["shout"], working.process.pid)
            assert client.wait(job.id, 60).completed
            (output,) = client.outputs(job.id)
            assert output.output == "HELLO"
            assert [client.read(file) for file in output.files] == [b"HELLO"]
            assert working.stop() == 0
        assert server.stop() == 0


def test_servers_that_share_a_database_and_a_secret_take_each_others_tokens(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    places = request.getfixturevalue("places")
    url = places.lend()
    (tmp_path / "secret").write_text(SECRET + "\n")
    with Up(tmp_path / "a", "--database", url, "--secret-file", tmp_path / "secret", command="serve") as first:
        key = first.key
        with (
            Up(tmp_path / "b", "--database", url, command="serve", env={"CALLSHEET_SECRET": SECRET}) as second,
            Client(first.url, key) as client,
        ):
            assert second.told["admin_key_file"] is None
            assert not (tmp_path / "b" / "admin.key").exists()
            token = client.create_token("ann").token
            seen = httpx.get(f"{second.url}/v1/jobs", headers={"authorization": f"Bearer {token}"})
            assert seen.status_code == 200
            assert second.stop() == 0
        assert first.stop() == 0
    places.give_back(url)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["work", "--module", "shouting:worker"], "come with the worker protocol"),
        (["work", "--module", "nowhere:worker", "--data", "."], "cannot be imported"),
        (["work", "--module", "shouting:shout", "--data", "."], "not a callsheet.worker.Worker"),
        (["work", "--module", ":worker", "--data", "."], "names a module and the worker in it"),
        (["work", "--module", "broken:worker", "--data", "."], "broken cannot be imported: SyntaxError"),
        (["work", "--module", "raising:worker", "--data", "."], "raising cannot be imported: KeyError: 'x'."),
        (["work", "--module", "leaving:worker", "--data", "."], "leaving cannot be imported: SystemExit: 7."),
        (["up", "--demo", "--no-demo"], "exclude each other"),
    ],
)
def test_a_wrong_call_exits_with_2_and_says_what_to_do(words: list[str], said: str, module: Path) -> None:
    for name, text in (("broken", "def ("), ("raising", "{}['x']"), ("leaving", "raise SystemExit(7)")):
        (module / f"{name}.py").write_text(text)
    done = run(*words, cwd=module)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
