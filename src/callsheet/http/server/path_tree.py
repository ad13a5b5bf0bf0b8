"""Routing: finds the route of a method and a path among all APIs of one port. Conflicting routes are refused."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from callsheet.core.policy.admission import WorkClass
from callsheet.http.server.body.decoder import BodyReader
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.problems import Problem
from callsheet.http.server.route import Route


class RouteConflictError(ValueError):
    """Two routes have the same method and path, or two APIs the same prefix."""


class CompiledRoute(NamedTuple):
    """A route with its API, its parameter names and the reader of its body, which are prepared once."""

    route: Route
    """With its full path."""
    api: Api
    parameters: tuple[str, ...]
    body: BodyReader | None
    work_class: WorkClass


class _Node:
    """A segment in the tree of paths."""

    __slots__ = ("api", "literals", "methods", "wildcard")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.wildcard: _Node | None = None
        self.methods: dict[str, CompiledRoute] = {}
        self.api: Api | None = None
        """The API whose prefix ends here."""


class PathTree:
    """The routes of several APIs, by path."""

    def __init__(self, apis: Iterable[Api], *, at_root: bool = False) -> None:
        """Mount APIs under their prefixes; `at_root` leaves the prefixes out."""
        mounted = tuple(apis)
        self._root = _Node()
        self._root_api = next((api for api in mounted if at_root or not api.prefix), mounted[0])
        prefixes = ["" if at_root else api.prefix for api in mounted]
        for api, prefix in zip(mounted, prefixes, strict=True):
            if prefixes.count(prefix) > 1:
                raise RouteConflictError(
                    f"Two APIs have the prefix {prefix or '/'}: mount one under another prefix or port."
                )
            if prefix:
                self._node_at(prefix).api = api
            for route in api.routes:
                self._add(api, route, prefix + route.path)

    def find(self, method: str, path: str, params: dict[str, str]) -> CompiledRoute:
        """Return the route of a raw path and add its decoded parameters to `params`; raise 404 or 405."""
        parts = _split(path)
        node = self._root
        values: list[str] = []
        for part in parts:
            if (literal := node.literals.get(part)) is not None:
                node = literal
            elif node.wildcard is not None and part:
                values.append(part)
                node = node.wildcard
            else:
                break
        else:
            compiled = node.methods.get("GET" if method == "HEAD" else method)
            if compiled is not None:
                if values:
                    params.update(zip(compiled.parameters, values, strict=True))
                return compiled
        return self._find_among_all(method, parts, params)

    def api_at(self, path: str) -> Api:
        """Return the API with the longest prefix of a path; it renders errors that no route handles."""
        node, found = self._root, self._root_api
        try:
            parts = _split(path)
        except Problem:
            parts = path.strip("/").split("/")
        for part in parts:
            literal = node.literals.get(part)
            if literal is None:
                break
            node, found = literal, literal.api or found
        return found

    def _find_among_all(self, method: str, parts: Sequence[str], params: dict[str, str]) -> CompiledRoute:
        """Search all branches: a literal segment such as `/a/b` must not hide `/a/{x}/c`."""
        for node, values in _matches(self._root, parts, 0, ()):
            compiled = node.methods.get("GET" if method == "HEAD" else method)
            if compiled is None:
                allowed = ", ".join(sorted({*node.methods, *({"HEAD"} if "GET" in node.methods else ())}))
                message = f"This path does not support {method}. Use {allowed}."
                raise Problem(405, "method_not_allowed", message, {"allow": allowed})
            params.update(zip(compiled.parameters, values, strict=True))
            return compiled
        raise _route_not_found()

    def _add(self, api: Api, route: Route, path: str) -> None:
        node = self._node_at(path)
        existing = node.methods.get(route.method)
        if existing is not None:
            raise RouteConflictError(
                f"{_describe(route, path)} conflicts with {_describe(existing.route, existing.route.path)}: "
                "two routes have the same method and path. Change a path, or mount one API under another prefix."
            )
        parameters = tuple(part[1:-1] for part in path.split("/") if part.startswith("{"))
        full = route._replace(path=api.full_path(route))
        node.methods[route.method] = CompiledRoute(full, api, parameters, BodyReader.for_route(full), full.admitted_as)

    def _node_at(self, path: str) -> _Node:
        """Return the node of a path; create it if it does not exist."""
        node = self._root
        for part in path.strip("/").split("/"):
            if part.startswith("{"):
                node.wildcard = node.wildcard or _Node()
                node = node.wildcard
            else:
                node = node.literals.setdefault(part, _Node())
        return node


def _matches(
    node: _Node, parts: Sequence[str], at: int, values: tuple[str, ...]
) -> Iterator[tuple[_Node, tuple[str, ...]]]:
    """Yield every node of a path, literal segments first; the size of the tree bounds the search."""
    if at == len(parts):
        if node.methods:
            yield node, values
        return
    part = parts[at]
    if (literal := node.literals.get(part)) is not None:
        yield from _matches(literal, parts, at + 1, values)
    if node.wildcard is not None and part:
        yield from _matches(node.wildcard, parts, at + 1, (*values, part))


def _describe(route: Route, path: str) -> str:
    handler = route.handler
    return f"{route.method} {path} ({handler.__module__}.{handler.__qualname__})"


def _split(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return [_decode_segment(part) for part in parts] if "%" in path else parts


def _decode_segment(part: str) -> str:
    """Decode one segment of a path: an escaped slash stays within it."""
    try:
        text = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise _route_not_found() from None
    if any(ord(c) < ord(" ") or c == "\x7f" for c in text):
        raise _route_not_found()
    return text


def _route_not_found() -> Problem:
    return Problem(404, "route_not_found", "No route has this path. Check the URL.")
