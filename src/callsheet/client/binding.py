"""How one talk becomes a method of two clients, with real types on both and nothing written twice.

`call` and `iterate` are descriptors. On a client that blocks a method gives the result itself; on one of asyncio it
gives a coroutine, or an async generator. ParamSpec carries names, defaults and types of the parameters through.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from callsheet.client.talk import Items, Talk

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Protocol):
    """A driver that blocks its thread."""

    def run(self, talk: Talk[T]) -> T: ...

    def each(self, talk: Items[T]) -> Generator[T, None, None]: ...


class Awaiting(Protocol):
    """A driver for asyncio."""

    def arun(self, talk: Talk[T]) -> Coroutine[Any, Any, T]: ...

    def aeach(self, talk: Items[T]) -> AsyncGenerator[T, None]: ...


class call(Generic[P, T]):  # noqa: N801 - a decorator
    """A method with one result."""

    def __init__(self, made: Callable[Concatenate[Any, P], Talk[T]]) -> None:
        self._method = _method(made, "run")
        functools.update_wrapper(self, made)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else MethodType(self._method, client)


class iterate(Generic[P, T]):  # noqa: N801 - a decorator
    """A method with many results, one after the other."""

    def __init__(self, made: Callable[Concatenate[Any, P], Items[T]]) -> None:
        self._method = _method(made, "each")
        functools.update_wrapper(self, made)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else MethodType(self._method, client)


def _method(made: Callable[..., Any], how: str) -> Callable[..., Any]:
    """Make a function that is bound to a client like any other: `inspect` leaves its first parameter out by itself."""

    @functools.wraps(made)
    def method(client: Any, *args: Any, **more: Any) -> Any:
        drive = getattr(client, how, None) or getattr(client, f"a{how}")
        return drive(made(client, *args, **more))

    return method
