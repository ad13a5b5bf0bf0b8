"""Checks the Host header, so that a web page cannot reach a local server under a name of its own (DNS rebinding)."""

import re
from collections.abc import Iterable
from ipaddress import ip_address

from callsheet.http.server.problems import Problem

ANY_HOST = "*"
_HOST = re.compile(rb"(?P<name>[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_CACHE_MAX = 256
_SHOWN_CHARS_MAX = 100


class HostCheck:
    """The hosts that a server answers to. Created once per server."""

    def __init__(self, listening_address: str, allowed_hosts: Iterable[str]) -> None:
        """Any host is accepted on an address that other machines can reach, unless `allowed_hosts` lists some."""
        self._allowed = frozenset(map(parse_allowed_host, allowed_hosts))
        self._accepts_any = ANY_HOST in self._allowed or not (self._allowed or is_loopback(listening_address))
        self._accepted: set[bytes] = set()

    def problem_of(self, host: bytes, own_address: str) -> Problem | None:
        """Return the error for a Host header, or None. `own_address` is where the client connected to."""
        if host in self._accepted:
            return None
        parsed = _HOST.fullmatch(host.strip(b" \t"))
        if parsed is None:
            shown = repr(host.decode("latin-1"))[:_SHOWN_CHARS_MAX]
            message = f"The Host header {shown} is not valid. Send the host and port of the URL."
            return Problem(400, "invalid_request", message)
        name = parsed["name"].decode("ascii").lower().rstrip(".").strip("[]")
        if not (self._accepts_any or name in self._allowed or name == own_address or is_loopback(name)):
            return Problem(
                421, "host_not_allowed",
                f"This server does not answer to the host {name[:_SHOWN_CHARS_MAX]}. Use an address of the server, or "
                "add the host to allowed_hosts under [http] in the settings.",
            )  # fmt: skip
        if len(self._accepted) < _CACHE_MAX and len(host) <= _SHOWN_CHARS_MAX and name != own_address:
            self._accepted.add(host)
        return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_allowed_host(host: str) -> str:
    """Return a setting's host in lower case; refuse one with a port or a path."""
    name = host.lower().rstrip(".").strip("[]")
    is_valid = host == ANY_HOST or (":" not in name and _HOST.fullmatch(host.encode())) or _is_address(name)
    if not is_valid:
        raise ValueError(
            f"allowed_hosts: {host!r} is not a host: write a name such as callsheet.example, without scheme and port."
        )
    return name


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
