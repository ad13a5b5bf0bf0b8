"""Both clients behind one face, so that a scenario is written once and runs through both drivers."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Protocol

from callsheet.client import AsyncClient, Client, Patience

KINDS = ("blocking", "asyncio")
QUICK = Patience(retries_max=4, base_seconds=0.001, max_seconds=0.002)


class Make(Protocol):
    """Makes a client for an address and a key; the test's end closes it."""

    def __call__(self, url: str, key: str | None = None, patience: Patience = QUICK) -> Any: ...


class OnLoop:
    """An AsyncClient whose calls are run to their end, one by one, on a loop of its own."""

    def __init__(self, url: str, key: str | None, patience: Patience) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, key, patience=patience)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **more: Any) -> Any:
            made: Any = method(*args, **more)
            return self._each(made) if inspect.isasyncgen(made) else self._runner.run(made)

        return call

    def _each(self, made: AsyncGenerator[Any, Any]) -> Generator[Any, None, None]:
        nothing = object()
        try:
            while (one := self._runner.run(_next(made, nothing))) is not nothing:
                yield one
        finally:
            self._runner.run(made.aclose())

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


async def _next(made: AsyncGenerator[Any, Any], nothing: object) -> Any:
    return await anext(made, nothing)


def make(kind: str, url: str, key: str | None, patience: Patience) -> Any:
    return Client(url, key, patience=patience) if kind == "blocking" else OnLoop(url, key, patience)
