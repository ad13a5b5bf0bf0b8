"""Both clients have the same methods and precise types, and importing them loads no server."""

import inspect
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from importlib import metadata
from operator import attrgetter
from typing import Any, assert_type

import pytest

import callsheet
from callsheet import client
from callsheet.client import (
    AsyncClient,
    Client,
    Event,
    File,
    Job,
    Run,
    Task,
    docs_page,
)
from callsheet.client.method_binding import call, iterate

METHODS: dict[str, Any] = {
    f"{namespace}.{name}": method
    for namespace, resource in docs_page.namespaces().items()
    for name, method in vars(resource).items()
    if isinstance(method, call | iterate)
}
SERVER_MODULES = {"callsheet.engine", "callsheet.store", "callsheet.http", "apsw", "psycopg", "jsonschema_rs"}


def test_importing_the_client_loads_no_server_module_and_no_database_driver() -> None:
    program = "import sys, callsheet.client, callsheet.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "callsheet.api.jobs" in loaded
    assert SERVER_MODULES & loaded == set()


async def types(client: Client, other: AsyncClient) -> None:
    """Checked by mypy: the types of both clients. A wrong call is an error, or its `ignore` would be unused."""
    assert_type(client.jobs.get("j"), Job)
    assert_type(client.jobs.runs("j"), list[Run])
    assert_type(client.jobs.tasks("j"), Generator[Task, None, None])
    assert_type(client.jobs.events("j", cursor=3), Generator[Event, None, None])
    assert_type(client.files.upload(b"", user="ann"), File)
    assert_type(await other.files.upload(b"", user="ann"), File)
    assert_type(await other.jobs.get("j"), Job)
    assert_type(await other.jobs.runs("j"), list[Run])
    assert_type(other.jobs.events("j", cursor=3), AsyncGenerator[Event, None])
    client.jobs.get(1)  # type: ignore[arg-type]
    client.jobs.submit("sketch", uzer="ann")  # type: ignore[call-arg]
    await other.jobs.wait("j", timeout="long")  # type: ignore[arg-type]


def test_both_clients_have_every_method_with_its_signature_and_docstring() -> None:
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


def test_methods_are_bound_as_usual_without_a_new_function() -> None:
    with Client("http://x") as client, Client("http://y") as other:
        for name in METHODS:
            bound = attrgetter(name)
            assert bound(client).__func__ is bound(other).__func__
            assert bound(client) == bound(client) != bound(other)


def test_the_package_exports_all_names_of_the_client_except_worker() -> None:
    for name in client.__all__:
        if name != "Worker":
            assert getattr(callsheet, name) is getattr(client, name)
    assert set(callsheet.__all__) == {*client.__all__, "__version__"} - {"Worker"}
    with pytest.raises(AttributeError):
        _ = callsheet.Worker  # type: ignore[attr-defined]


def test_the_package_lists_its_names_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"AsyncClient", "CallsheetError", "Client", "__version__", "__all__", "__doc__"} <= set(dir(callsheet))
    assert callsheet.__version__ == metadata.version("callsheet")

    def not_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", not_installed)
    assert callsheet.__version__ == "unknown"


def test_the_clients_are_imported_on_first_use() -> None:
    assert callsheet.Client is Client
    with pytest.raises(AttributeError, match="no attribute 'Clyent'"):
        _ = callsheet.Clyent  # type: ignore[attr-defined]
    program = "import sys, callsheet; before = 'httpx' in sys.modules; from callsheet import AsyncClient; "
    done = subprocess.run(
        [sys.executable, "-c", f"{program}print(before, 'httpx' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False True\n"
