"""The server under test: Callsheet, a minimal response at /echo, and its number of database round trips at /trips."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from callsheet.app import Callsheet
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.http.listener.process_setup import make_full_collections_rare
from callsheet.http.listener.uvicorn_server import Server, bind
from callsheet.store.postgres import PostgresConnection
from callsheet.store.sqlite import SqliteConnection

_BODY = b'{"id":"0","status":"queued","price":3,"progress":0}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]


_round_trips = 0


def count_round_trips(connection: type[Any], original: Callable[..., Any]) -> None:
    """Count the calls of a method that makes a round trip to the database."""

    def counting(*args: Any, **kwargs: Any) -> Any:
        global _round_trips  # noqa: PLW0603 - one number for the whole process
        _round_trips += 1
        return original(*args, **kwargs)

    setattr(connection, original.__name__, counting)


def main(dsn: str, data: Path) -> None:
    with Callsheet(dsn, data) as callsheet:
        callsheet.start()
        key = callsheet.ensure_admin_key()[0].read_text().strip()
        fleet = callsheet.ensure_fleet_key().read_text().strip()
        definition = WorkflowDefinition(name="sketch", price=3, stages=[StageSpec(name="draw", kind="draw")])
        callsheet.engine.execute(commands.PutWorkflow(definition=definition))
        callsheet.engine.execute(commands.TopUp(tenant="default", user="ann", amount=10**9, idempotency_key="start"))
        listening_socket = bind("127.0.0.1", 0)
        port = listening_socket.getsockname()[1]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") == "/echo":
                await receive()
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await send({"type": "http.response.body", "body": _BODY})
                return
            if scope.get("path") == "/trips":
                await receive()
                body = json.dumps({"trips": _round_trips}).encode()
                length = (b"content-length", b"%d" % len(body))
                await send({"type": "http.response.start", "status": 200, "headers": [length]})
                await send({"type": "http.response.body", "body": body})
                return
            await callsheet.app(scope, receive, send)

        app.early_refusals = callsheet.app.early_refusals  # type: ignore[attr-defined]

        def ready() -> None:
            make_full_collections_rare()
            print(json.dumps({"port": port, "key": key, "fleet": fleet}), flush=True)

        Server(app, listening_socket, callsheet.state.settings, ready).serve_on_socket()


if __name__ == "__main__":
    count_round_trips(PostgresConnection, PostgresConnection.fetch_all)
    count_round_trips(SqliteConnection, SqliteConnection.fetch)
    main(sys.argv[1], Path(sys.argv[2]))
