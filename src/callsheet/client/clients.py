"""The two clients: the same resource namespaces, on a blocking driver and on asyncio."""

import os
from types import TracebackType
from typing import Any, Generic, Self

import httpx

from callsheet.client.drivers.async_ import AsyncDriver
from callsheet.client.drivers.sync import SyncDriver
from callsheet.client.resource import D
from callsheet.client.resources.audit import Audit
from callsheet.client.resources.events import Events
from callsheet.client.resources.files import Files
from callsheet.client.resources.identity import IdentityResource
from callsheet.client.resources.jobs import Jobs
from callsheet.client.resources.keys import Keys
from callsheet.client.resources.ops import OpsResource
from callsheet.client.resources.quotes import Quotes
from callsheet.client.resources.tenants import Tenants
from callsheet.client.resources.tokens import Tokens
from callsheet.client.resources.wallets import Wallets
from callsheet.client.resources.workers import Workers
from callsheet.client.resources.workflows import Workflows
from callsheet.client.retry import RetryPolicy
from callsheet.client.transport import client_options, resolve_url


class BaseClient(Generic[D]):
    """The resource namespaces of both clients."""

    def __init__(self, driver: D, url: str, retry_policy: RetryPolicy | None) -> None:
        policy = retry_policy or RetryPolicy()
        self.url = url
        self.jobs = Jobs(driver, url, policy)
        self.quotes = Quotes(driver, url, policy)
        self.events = Events(driver, url, policy)
        self.files = Files(driver, url, policy)
        self.wallets = Wallets(driver, url, policy)
        self.workflows = Workflows(driver, url, policy)
        self.tokens = Tokens(driver, url, policy)
        self.identity = IdentityResource(driver, url, policy)
        self.keys = Keys(driver, url, policy)
        self.tenants = Tenants(driver, url, policy)
        self.workers = Workers(driver, url, policy)
        self.ops = OpsResource(driver, url, policy)
        self.audit = Audit(driver, url, policy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Client(BaseClient[SyncDriver]):
    """A blocking client, safe to share between threads. Close it, or use it in a `with`.

    `url`, `api_key` and `tenant` default to CALLSHEET_URL, CALLSHEET_API_KEY and CALLSHEET_TENANT. Pass `tenant` only
    with an operator's key, which belongs to no tenant.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, tenant: str | None = None, timeout: float = 30.0,
        retry_policy: RetryPolicy | None = None, transport: httpx.BaseTransport | None = None,
    ) -> None:  # fmt: skip
        url = resolve_url(url)
        self._http = httpx.Client(**_http_options(url, api_key, tenant), transport=transport)
        super().__init__(SyncDriver(self._http, timeout), url, retry_policy)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(BaseClient[AsyncDriver]):
    """A client for asyncio. Close it, or use it in an `async with`. It takes the arguments of `Client`."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, tenant: str | None = None, timeout: float = 30.0,
        retry_policy: RetryPolicy | None = None, transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:  # fmt: skip
        url = resolve_url(url)
        self._http = httpx.AsyncClient(**_http_options(url, api_key, tenant), transport=transport)
        super().__init__(AsyncDriver(self._http, timeout), url, retry_policy)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _http_options(url: str, api_key: str | None, tenant: str | None) -> dict[str, Any]:
    return client_options(
        url, api_key or os.environ.get("CALLSHEET_API_KEY", ""), tenant or os.environ.get("CALLSHEET_TENANT", "")
    )
