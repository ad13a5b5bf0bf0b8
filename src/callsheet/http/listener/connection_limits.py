"""How many connections a server serves, in all and per client address, and which are closed when there are too many.

At the limit, the connection that has waited longest without a request is closed for a new one. If all of them have
requests in progress, only health checks and metrics are served, on connections beyond the limit.
"""

from collections.abc import Iterable
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol

RESERVED_FILES = 128
"""File descriptors kept for other uses: the database, files in transfer, and connections beyond the limit."""
_BEYOND_LIMIT_MAX = 32
"""Connections beyond the limit, for health checks and error responses."""
_REFUSED_MAX = 32
"""Refused connections that stay open until their clients have read the response."""
_IPV6_CLIENT_BITS = 64
"""A client with IPv6 has at least this network, so its addresses count as one."""


class ClosableConnection(Protocol):
    """A connection that the limits can close."""

    def abort(self) -> None: ...


class Admission(Enum):
    """What happens to a new connection."""

    SERVE = "serve"
    REFUSE_ADDRESS = "refuse address"
    """Its address has too many connections: send an error and close it."""
    ABORT = "abort"


class ConnectionLimits:
    """Counts the open connections of a server. All ports share one object."""

    def __init__(self, connections_max: int, per_address_max: int, proxy_addresses: Iterable[str]) -> None:
        """One address gets at most half of the connections, except the addresses of proxies."""
        self._connections_max = connections_max
        self._per_address_max = min(per_address_max, max(connections_max // 2, 1))
        self._proxies = tuple(map(parse_network, proxy_addresses))
        self._client_of: dict[ClosableConnection, str] = {}
        self._counts: dict[str, int] = {}
        self._new: dict[ClosableConnection, None] = {}
        """Connections that have not sent a complete request head yet, the oldest first."""
        self._idle: dict[ClosableConnection, None] = {}
        """Connections between two requests, the longest idle one first."""
        self._refused: dict[ClosableConnection, None] = {}

    @property
    def per_address_max(self) -> int:
        return self._per_address_max

    def count_free(self) -> int:
        """Return how many more connections fit."""
        return max(self._connections_max - len(self._client_of), 0)

    def add(self, connection: ClosableConnection, address: str, *, limit_address: bool = True) -> Admission:
        """Count a new connection and decide whether it is served."""
        client = client_network(address)
        count = self._counts.get(client, 0)
        if limit_address and count >= self._per_address_max and not self._is_proxy(address):
            self._add_refused(connection)
            return Admission.REFUSE_ADDRESS
        self._counts[client] = count + 1
        self._client_of[connection] = client
        if not self.make_space() and len(self._client_of) > self._connections_max + _BEYOND_LIMIT_MAX:
            self.remove(connection)
            return Admission.ABORT
        self._new[connection] = None
        return Admission.SERVE

    def mark_busy(self, connection: ClosableConnection) -> None:
        """Record that a request is in progress."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def mark_idle(self, connection: ClosableConnection) -> None:
        """Record that all requests of a connection have their responses."""
        if connection in self._client_of:
            self._idle[connection] = None

    def remove(self, connection: ClosableConnection) -> None:
        """Forget a connection that is closed."""
        self._refused.pop(connection, None)
        self.mark_busy(connection)
        client = self._client_of.pop(connection, None)
        if client is None:
            return
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]

    def make_space(self) -> bool:
        """Close connections without a request until the limit holds. Return whether it does."""
        while len(self._client_of) > self._connections_max:
            oldest = next(iter(self._new or self._idle), None)
            if oldest is None:
                return False
            self.remove(oldest)
            oldest.abort()
        return True

    def _add_refused(self, connection: ClosableConnection) -> None:
        if len(self._refused) >= _REFUSED_MAX:
            oldest = next(iter(self._refused))
            self.remove(oldest)
            oldest.abort()
        self._refused[connection] = None

    def _is_proxy(self, address: str) -> bool:
        parsed = _parse_address(address)
        return parsed is not None and any(parsed in network for network in self._proxies)


def parse_network(text: str) -> IPv4Network | IPv6Network:
    """Parse an IP address or a network such as 10.0.0.0/24."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"proxy_addresses: {text!r} is not an IP address or a network: write one such as 10.0.0.1 or 10.0.0.0/24."
        ) from None


def client_network(address: str) -> str:
    """Return what identifies a client: its IPv4 address, or the /64 network of its IPv6 address."""
    parsed = _parse_address(address)
    if not isinstance(parsed, IPv6Address):
        return address if parsed is None else str(parsed)
    return str(ip_network((parsed, _IPV6_CLIENT_BITS), strict=False))


def _parse_address(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed
