"""What all connections of a server share: settings, limits, allowed hosts, and the paths of health checks."""

import asyncio
from typing import NamedTuple

from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from callsheet.http.listener.connection_limits import Admission, ClosableConnection, ConnectionLimits
from callsheet.http.listener.host_check import HostCheck
from callsheet.settings import HttpSettings


class ListenerContext(NamedTuple):
    """What all connections of a server share."""

    settings: HttpSettings
    limits: ConnectionLimits
    hosts: HostCheck
    health_paths: frozenset[bytes]
    """Paths that are served even if the server has reached its limit of connections."""
    health_ports: frozenset[int]
    """Ports that only serve these paths. The limit per address does not apply to them."""

    def add_connection(self, connection: ClosableConnection, transport: asyncio.Transport) -> Admission:
        """Count a new connection and decide whether it is served."""
        client, server = get_remote_addr(transport), get_local_addr(transport)
        limit_address = server is None or server[1] not in self.health_ports
        return self.limits.add(connection, client[0] if client else "", limit_address=limit_address)
