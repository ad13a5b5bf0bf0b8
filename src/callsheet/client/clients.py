"""The two clients: every call of one source, behind a driver that blocks and a driver for asyncio."""

import os
from collections.abc import AsyncGenerator, Coroutine, Generator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from callsheet.client import awaiting, blocking
from callsheet.client.bulk import Bulk
from callsheet.client.files import Files
from callsheet.client.house import House, Money
from callsheet.client.jobs import Jobs
from callsheet.client.patience import Patience
from callsheet.client.scaling import Scaling
from callsheet.client.streams import Streams
from callsheet.client.talk import Items, Talk
from callsheet.client.uploads import Uploads
from callsheet.client.wire import address, options

T = TypeVar("T")


class Calls(Jobs, Bulk, Streams, Files, Uploads, Money, House, Scaling):
    """Every call. `url`, `key` and `tenant` may come from CALLSHEET_URL, CALLSHEET_KEY and CALLSHEET_TENANT.

    A key belongs to a tenant; only an operator, whose key belongs to none, names the tenant to act for.
    """

    def __init__(
        self, url: str | None, key: str | None, tenant: str | None, timeout: float, patience: Patience | None
    ) -> None:
        self.url = address(url)
        self.patience = patience or Patience()
        self._timeout = timeout
        self._options = options(
            self.url, key or os.environ.get("CALLSHEET_KEY", ""), tenant or os.environ.get("CALLSHEET_TENANT", "")
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Client(Calls):
    """A client that blocks. Safe for any number of threads; close it, or use it in a `with`."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, tenant: str | None = None, timeout: float = 30.0,
        patience: Patience | None = None, transport: httpx.BaseTransport | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, key, tenant, timeout, patience)
        self._http = httpx.Client(**self._options, transport=transport)

    def run(self, talk: Talk[T]) -> T:
        """Drive a call with one result."""
        return blocking.run(self._http, self._timeout, talk)

    def each(self, talk: Items[T]) -> Generator[T, None, None]:
        """Drive a call with many results."""
        return blocking.each(self._http, self._timeout, talk)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Calls):
    """A client for asyncio. Close it, or use it in an `async with`."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, tenant: str | None = None, timeout: float = 30.0,
        patience: Patience | None = None, transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, key, tenant, timeout, patience)
        self._http = httpx.AsyncClient(**self._options, transport=transport)

    def arun(self, talk: Talk[T]) -> Coroutine[Any, Any, T]:
        """Drive a call with one result."""
        return awaiting.run(self._http, self._timeout, talk)

    def aeach(self, talk: Items[T]) -> AsyncGenerator[T, None]:
        """Drive a call with many results."""
        return awaiting.each(self._http, self._timeout, talk)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
