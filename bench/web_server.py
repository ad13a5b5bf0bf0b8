"""The server under load: Callsheet; at /echo the least that a server can do, at /trips its trips to the database."""

import json
import sys
from pathlib import Path
from typing import Any

from callsheet.app import Callsheet
from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.http.server import Server, bind
from callsheet.store.postgres import PostgresConnection
from callsheet.store.sqlite import SqliteConnection

_BODY = b'{"id":"0","status":"queued","price":3,"progress":0}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]


_trips = 0


def count_trips(connection: type[Any], verb: str) -> None:
    """Count what a connection asks its database."""
    asked = getattr(connection, verb)

    def counted(*given: Any, **more: Any) -> Any:
        global _trips  # noqa: PLW0603 - one number for the whole process
        _trips += 1
        return asked(*given, **more)

    setattr(connection, verb, counted)


def main(place: str, data: Path) -> None:
    with Callsheet(place, data) as callsheet:
        callsheet.start()
        key = callsheet.admin_key()[0].read_text().strip()
        fleet = callsheet.fleet_secret().read_text().strip()
        recipe = Recipe(name="sketch", price=3, stages=[StageSpec(name="draw", kind="draw")])
        callsheet.engine.execute(commands.PutWorkflow(recipe=recipe))
        callsheet.engine.execute(commands.TopUp(tenant="default", user="ann", amount=10**9, idempotency_key="start"))
        bound = bind("127.0.0.1", 0)
        port = bound.getsockname()[1]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") == "/echo":
                await receive()
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await send({"type": "http.response.body", "body": _BODY})
                return
            if scope.get("path") == "/trips":
                await receive()
                body = json.dumps({"trips": _trips}).encode()
                length = (b"content-length", b"%d" % len(body))
                await send({"type": "http.response.start", "status": 200, "headers": [length]})
                await send({"type": "http.response.body", "body": body})
                return
            await callsheet.app(scope, receive, send)

        def ready() -> None:
            print(json.dumps({"port": port, "key": key, "fleet": fleet}), flush=True)

        Server(app, bound, callsheet.house.settings, ready).serve_here()


if __name__ == "__main__":
    count_trips(PostgresConnection, "fetch_all")
    count_trips(PostgresConnection, "ask")
    count_trips(SqliteConnection, "fetch")
    main(sys.argv[1], Path(sys.argv[2]))
