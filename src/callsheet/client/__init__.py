"""The Python client: `Client`, and `AsyncClient` for asyncio, with the same methods."""

from callsheet.api.workers import Worker
from callsheet.client.public_api import *  # noqa: F403 - the list of names is in public_api
from callsheet.client.public_api import __all__ as __all__

__all__ = [*__all__, "Worker"]  # noqa: PLE0604 - the imported names are strings
