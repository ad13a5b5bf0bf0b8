"""Turn one operation into a method of both clients, with exact types on each.

`call` and `iterate` are descriptors. With a SyncDriver the method returns the result or a generator. With an
AsyncDriver it returns a coroutine or an async generator. ParamSpec carries the parameters through.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from callsheet.client.drivers.async_ import AsyncDriver
from callsheet.client.drivers.sync import SyncDriver
from callsheet.client.operation_effects import IterableOperation, Operation
from callsheet.client.resource import Resource

P = ParamSpec("P")
T = TypeVar("T")


class call(Generic[P, T]):  # noqa: N801 - a decorator
    """A method with one result."""

    def __init__(self, build_operation: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self._method = _create_method(build_operation, "run")
        functools.update_wrapper(self, build_operation)  # type: ignore[arg-type]

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[SyncDriver], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, resource: Resource[AsyncDriver], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, resource: Any, owner: type) -> Any:
        return self if resource is None else MethodType(self._method, resource)


class iterate(Generic[P, T]):  # noqa: N801 - a decorator
    """A method that yields results."""

    def __init__(self, build_operation: Callable[Concatenate[Any, P], IterableOperation[T]]) -> None:
        self._method = _create_method(build_operation, "each")
        functools.update_wrapper(self, build_operation)  # type: ignore[arg-type]

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[SyncDriver], owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, resource: Resource[AsyncDriver], owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...

    def __get__(self, resource: Any, owner: type) -> Any:
        return self if resource is None else MethodType(self._method, resource)


def _create_method(build_operation: Callable[..., Any], driver_method: str) -> Callable[..., Any]:
    """Return a plain function, so that `inspect.signature` of the bound method leaves `self` out."""

    @functools.wraps(build_operation)
    def method(resource: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(resource.driver, driver_method)(build_operation(resource, *args, **kwargs))

    return method
