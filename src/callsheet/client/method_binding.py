"""How one talk becomes a method of two clients, with real types on both and nothing written twice.

`call` and `iterate` are descriptors. On a client that blocks a method gives the result itself; on one of asyncio it
gives a coroutine, or an async generator. ParamSpec carries names, defaults and types of the parameters through.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from callsheet.client.operations import IterableOperation, Operation

P = ParamSpec("P")
T = TypeVar("T")


class SyncDriver(Protocol):
    """A driver that blocks its thread."""

    def run(self, operation: Operation[T]) -> T: ...

    def each(self, operation: IterableOperation[T]) -> Generator[T, None, None]: ...


class AsyncDriver(Protocol):
    """A driver for asyncio."""

    def arun(self, operation: Operation[T]) -> Coroutine[Any, Any, T]: ...

    def aeach(self, operation: IterableOperation[T]) -> AsyncGenerator[T, None]: ...


class call(Generic[P, T]):  # noqa: N801 - a decorator
    """A method with one result."""

    def __init__(self, build_operation: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self._bind_operation = _bind_operation(build_operation, "run")
        functools.update_wrapper(self, build_operation)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SyncDriver, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else MethodType(self._bind_operation, client)


class iterate(Generic[P, T]):  # noqa: N801 - a decorator
    """A method with many results, one after the other."""

    def __init__(self, build_operation: Callable[Concatenate[Any, P], IterableOperation[T]]) -> None:
        self._bind_operation = _bind_operation(build_operation, "each")
        functools.update_wrapper(self, build_operation)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SyncDriver, owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, client: AsyncDriver, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else MethodType(self._bind_operation, client)


def _bind_operation(build_operation: Callable[..., Any], driver_method: str) -> Callable[..., Any]:
    """Make a function that is bound to a client like any other: `inspect` leaves its first parameter out by itself."""

    @functools.wraps(build_operation)
    def method(client: Any, *args: Any, **kwargs: Any) -> Any:
        drive = getattr(client, driver_method, None) or getattr(client, f"a{driver_method}")
        return drive(build_operation(client, *args, **kwargs))

    return method
