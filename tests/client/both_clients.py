"""Both clients behind one face, so that a scenario is written once and runs through both drivers."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Protocol

from callsheet.client import AsyncClient, Client, RetryPolicy

CLIENT_KINDS = ("blocking", "asyncio")
FAST_RETRIES = RetryPolicy(retries_max=4, base_seconds=0.001, max_seconds=0.002)


class ClientFactory(Protocol):
    """Makes a client for an address and a key; the test's end closes it."""

    def __call__(self, url: str, key: str | None = None, retry_policy: RetryPolicy = FAST_RETRIES) -> Any: ...


class BlockingAsyncClient:
    """An AsyncClient whose calls are run to their end, one by one, on a loop of its own."""

    def __init__(self, url: str, key: str | None, retry_policy: RetryPolicy) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, key, retry_policy=retry_policy)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **more: Any) -> Any:
            result: Any = method(*args, **more)
            return self._iterate(result) if inspect.isasyncgen(result) else self._runner.run(result)

        return call

    def _iterate(self, result: AsyncGenerator[Any, Any]) -> Generator[Any, None, None]:
        sentinel = object()
        try:
            while (one := self._runner.run(_next(result, sentinel))) is not sentinel:
                yield one
        finally:
            self._runner.run(result.aclose())

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


async def _next(result: AsyncGenerator[Any, Any], sentinel: object) -> Any:
    return await anext(result, sentinel)


def create_client(kind: str, url: str, key: str | None, retry_policy: RetryPolicy) -> Any:
    return (
        Client(url, key, retry_policy=retry_policy)
        if kind == "blocking"
        else BlockingAsyncClient(url, key, retry_policy)
    )
