"""Callsheet: the durable job backend for products that sell AI-made media.

The package exports the names of `callsheet.client.public_api`. They are imported on first use: a server does not need
the client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callsheet.client.public_api import *  # noqa: F403 - the list of names is in public_api
    from callsheet.client.public_api import __all__ as __all__

    __version__: str
    __all__ = [*__all__, "__version__"]  # noqa: PLE0604 - the imported names are strings
else:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return _version()
        if name == "__all__":
            return [*_import_public_api().__all__, "__version__"]
        # All public names are classes. A lowercase name is a submodule: looking for it must not import the client.
        if name[:1].isupper() and name in _import_public_api().__all__:
            return getattr(_import_public_api(), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), "__all__", *__getattr__("__all__")})

    def _import_public_api() -> Any:
        from callsheet.client import public_api  # noqa: PLC0415 - imports httpx, which is slow

        return public_api

    def _version() -> str:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

        try:
            return version("callsheet")
        except PackageNotFoundError:  # bundled into another program, without package metadata
            return "unknown"
