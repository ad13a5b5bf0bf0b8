"""The two clients: every call of one source, behind a driver that blocks and a driver for asyncio."""

import os
from collections.abc import AsyncGenerator, Coroutine, Generator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from callsheet.client.admin import Admin, Wallets
from callsheet.client.bulk_submit import Bulk
from callsheet.client.downloads import Downloads
from callsheet.client.drivers import async_, sync
from callsheet.client.event_stream import Streams
from callsheet.client.jobs import Jobs
from callsheet.client.operations import IterableOperation, Operation
from callsheet.client.retry import RetryPolicy
from callsheet.client.scaling import Scaling
from callsheet.client.transport import client_options, resolve_url
from callsheet.client.uploads import Uploads

T = TypeVar("T")


class BaseClient(Jobs, Bulk, Streams, Downloads, Uploads, Wallets, Admin, Scaling):
    """Every call. `url`, `key` and `tenant` may come from CALLSHEET_URL, CALLSHEET_API_KEY and CALLSHEET_TENANT.

    A key belongs to a tenant; only an operator, whose key belongs to none, names the tenant to act for.
    """

    def __init__(
        self, url: str | None, key: str | None, tenant: str | None, timeout: float, retry_policy: RetryPolicy | None
    ) -> None:
        self.url = resolve_url(url)
        self.retry_policy = retry_policy or RetryPolicy()
        self._timeout = timeout
        self._options = client_options(
            self.url, key or os.environ.get("CALLSHEET_API_KEY", ""), tenant or os.environ.get("CALLSHEET_TENANT", "")
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Client(BaseClient):
    """A client that blocks. Safe for any number of threads; close it, or use it in a `with`."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, tenant: str | None = None, timeout: float = 30.0,
        retry_policy: RetryPolicy | None = None, transport: httpx.BaseTransport | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, key, tenant, timeout, retry_policy)
        self._http = httpx.Client(**self._options, transport=transport)

    def run(self, operation: Operation[T]) -> T:
        """Drive a call with one result."""
        return sync.run(self._http, self._timeout, operation)

    def each(self, operation: IterableOperation[T]) -> Generator[T, None, None]:
        """Drive a call with many results."""
        return sync.each(self._http, self._timeout, operation)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(BaseClient):
    """A client for asyncio. Close it, or use it in an `async with`."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, tenant: str | None = None, timeout: float = 30.0,
        retry_policy: RetryPolicy | None = None, transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, key, tenant, timeout, retry_policy)
        self._http = httpx.AsyncClient(**self._options, transport=transport)

    def arun(self, operation: Operation[T]) -> Coroutine[Any, Any, T]:
        """Drive a call with one result."""
        return async_.run(self._http, self._timeout, operation)

    def aeach(self, operation: IterableOperation[T]) -> AsyncGenerator[T, None]:
        """Drive a call with many results."""
        return async_.each(self._http, self._timeout, operation)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
