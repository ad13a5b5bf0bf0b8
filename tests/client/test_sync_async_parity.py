"""The two clients are one: the same calls, real types on both, and models that are what the server sends."""

import inspect
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from importlib import metadata
from operator import attrgetter
from typing import Any, assert_type

import pytest
from msgspec import Struct

import callsheet
from callsheet import client
from callsheet.api import admin, errors, events, explanation, files, jobs, quotes, stages, wallets, workers, workflows
from callsheet.client import (
    AsyncClient,
    Client,
    Event,
    File,
    Job,
    Run,
    Task,
    docs_page,
    file_models,
    models,
    secret_models,
    worker_models,
)
from callsheet.client.method_binding import call, iterate

METHODS: dict[str, Any] = {
    f"{namespace}.{name}": method
    for namespace, resource in docs_page.namespaces().items()
    for name, method in vars(resource).items()
    if isinstance(method, call | iterate)
}
OURS = {"Job": ("replay",), "BulkResult": ("idempotency_key",)}
"""What the client knows by itself, behind what the server sends."""
MODULES = (admin, errors, events, explanation, files, jobs, quotes, stages, wallets, workers, workflows)


MODELS: dict[str, Any] = {
    name: one
    for name, one in sorted({**vars(models), **vars(file_models), **vars(worker_models), **vars(secret_models)}.items())
    if inspect.isclass(one) and issubclass(one, Struct) and one not in {Struct, secret_models.SecretStruct}
}


def server_struct(name: str) -> Any:
    """Return the struct that the server sends under a model's name."""
    known = {"NewJob": jobs.SubmitBody, "BulkResult": jobs.BulkItem}
    return known.get(name) or next((getattr(module, name) for module in MODULES if hasattr(module, name)), None)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_fields_that_the_server_sends(name: str) -> None:
    there = server_struct(name)
    assert there is not None, f"the server sends no {name}"
    assert MODELS[name].__struct_fields__ == there.__struct_fields__ + OURS.get(name, ())


async def types(client: Client, other: AsyncClient) -> None:
    """Read by mypy: what an editor knows of each client. A wrong call is an error, or its `ignore` would be unused."""
    assert_type(client.jobs.get("j"), Job)
    assert_type(client.jobs.runs("j"), list[Run])
    assert_type(client.jobs.tasks("j"), Generator[Task, None, None])
    assert_type(client.jobs.events("j", after=3), Generator[Event, None, None])
    assert_type(client.files.upload(b"", user="ann"), File)
    assert_type(await other.files.upload(b"", user="ann"), File)
    assert_type(await other.jobs.get("j"), Job)
    assert_type(await other.jobs.runs("j"), list[Run])
    assert_type(other.jobs.events("j", after=3), AsyncGenerator[Event, None])
    client.jobs.get(1)  # type: ignore[arg-type]
    client.jobs.submit("sketch", uzer="ann")  # type: ignore[call-arg]
    await other.jobs.wait("j", timeout="long")  # type: ignore[arg-type]


def test_both_clients_have_every_call_with_its_signature_and_its_words() -> None:
    assert len(METHODS) > 35
    with Client("http://x") as client:
        other = AsyncClient("http://x")
        for name, method in METHODS.items():
            blocking, awaited = attrgetter(name)(client), attrgetter(name)(other)
            assert inspect.signature(blocking) == inspect.signature(awaited)
            assert "self" not in inspect.signature(blocking).parameters
            assert blocking.__doc__ == method.__doc__
            assert blocking.__doc__, f"{name} has no docstring"
    assert list(inspect.signature(types).parameters) == ["client", "other"]


def test_a_call_is_bound_like_any_method_and_nothing_is_made_for_it() -> None:
    with Client("http://x") as client, Client("http://y") as other:
        for name in METHODS:
            bound = attrgetter(name)
            assert bound(client).__func__ is bound(other).__func__
            assert bound(client) == bound(client) != bound(other)


def test_everything_of_the_client_is_in_the_package_but_the_name_that_workers_have() -> None:
    for name in client.__all__:
        if name != "Worker":
            assert getattr(callsheet, name) is getattr(client, name)
    assert set(callsheet.__all__) == {*client.__all__, "__version__"} - {"Worker"}
    with pytest.raises(AttributeError):
        _ = callsheet.Worker  # type: ignore[attr-defined]


def test_the_package_says_what_it_has_and_which_version_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"AsyncClient", "CallsheetError", "Client", "__version__", "__all__", "__doc__"} <= set(dir(callsheet))
    assert callsheet.__version__ == metadata.version("callsheet")

    def nowhere(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nowhere)
    assert callsheet.__version__ == "unknown"


def test_the_clients_are_brought_in_when_they_are_asked_for() -> None:
    assert callsheet.Client is Client
    with pytest.raises(AttributeError, match="no attribute 'Clyent'"):
        _ = callsheet.Clyent  # type: ignore[attr-defined]
    look = "import sys, callsheet; before = 'httpx' in sys.modules; from callsheet import AsyncClient; "
    done = subprocess.run(
        [sys.executable, "-c", f"{look}print(before, 'httpx' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False True\n"
