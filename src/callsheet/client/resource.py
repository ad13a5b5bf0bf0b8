"""The base class of the resource namespaces."""

from typing import Generic, TypeVar

from callsheet.client.drivers.async_ import AsyncDriver
from callsheet.client.drivers.sync import SyncDriver
from callsheet.client.retry import RetryPolicy

D = TypeVar("D", bound=SyncDriver | AsyncDriver)


class Resource(Generic[D]):
    """The methods of one namespace of a client. The type parameter is the driver: blocking or asyncio."""

    def __init__(self, driver: D, url: str, retry_policy: RetryPolicy) -> None:
        self.driver = driver
        self.url = url
        self.retry_policy = retry_policy

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
