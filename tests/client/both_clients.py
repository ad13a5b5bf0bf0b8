"""Both clients behind one interface, so that a test is written once and runs on both drivers."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Protocol

from callsheet.client import AsyncClient, Client, RetryPolicy

CLIENT_KINDS = ("blocking", "asyncio")
FAST_RETRIES = RetryPolicy(retries_max=4, base_seconds=0.001, max_seconds=0.002)


class ClientFactory(Protocol):
    """Creates a client for a URL and an API key; it is closed at the end of the test."""

    def __call__(self, url: str, key: str | None = None, retry_policy: RetryPolicy = FAST_RETRIES) -> Any: ...


class BlockingAsyncClient:
    """An AsyncClient whose methods are run to completion, one by one, on an event loop of its own."""

    def __init__(self, url: str, key: str | None, retry_policy: RetryPolicy) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(url, key, retry_policy=retry_policy)

    def __getattr__(self, namespace: str) -> "_BlockingNamespace":
        return _BlockingNamespace(self._runner, getattr(self._client, namespace))

    def __repr__(self) -> str:
        return repr(self._client)

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


class _BlockingNamespace:
    """A resource namespace of an AsyncClient, with blocking methods."""

    def __init__(self, runner: asyncio.Runner, resource: Any) -> None:
        self._runner = runner
        self._resource = resource

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._resource, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result: Any = method(*args, **kwargs)
            return self._iterate(result) if inspect.isasyncgen(result) else self._runner.run(result)

        return call

    def _iterate(self, result: AsyncGenerator[Any, Any]) -> Generator[Any, None, None]:
        sentinel = object()
        try:
            while (item := self._runner.run(_next(result, sentinel))) is not sentinel:
                yield item
        finally:
            self._runner.run(result.aclose())


async def _next(result: AsyncGenerator[Any, Any], sentinel: object) -> Any:
    return await anext(result, sentinel)


def create_client(kind: str, url: str, key: str | None, retry_policy: RetryPolicy) -> Any:
    return (
        Client(url, key, retry_policy=retry_policy)
        if kind == "blocking"
        else BlockingAsyncClient(url, key, retry_policy)
    )
