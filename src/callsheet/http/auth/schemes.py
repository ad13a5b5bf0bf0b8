"""How an API finds the key in a request: as a bearer token, or in a header of its own."""

from typing import TYPE_CHECKING

from callsheet.http.auth.authenticator import Caller, missing_key
from callsheet.http.server.mounted_api import Authenticate
from callsheet.http.server.request import Request

if TYPE_CHECKING:
    from callsheet.http.state import AppState


async def authenticate_bearer(state: "AppState", request: Request) -> Caller:
    """Read `Authorization: Bearer …`; routes that allow it also accept a user token as `?token=`."""
    return await state.authenticator.authenticate(request, in_query=request.route.token_in_query)


def authenticate_by_header(name: str, prefix: str = "") -> Authenticate:
    """Return an authentication that reads the key from a header, after a prefix such as `Key `."""
    header = name.lower().encode()

    async def authenticate(state: "AppState", request: Request) -> Caller:
        if request.secret is None:
            given = request.header(header) or ""
            if not given.startswith(prefix) or given == prefix:
                raise missing_key(f"Send your key in the header {name}: {prefix}cs_….")
            request.secret = given.removeprefix(prefix)
        return await state.authenticator.authenticate(request)

    return authenticate
