"""Authentication schemes: where an API expects the key. It is a bearer token, or in a header that the API names."""

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
            value = request.header(header) or ""
            if not value.startswith(prefix) or value == prefix:
                raise missing_key(f"The request has no key. Send it in the header {name}: {prefix}cs_….")
            request.secret = value.removeprefix(prefix)
        return await state.authenticator.authenticate(request)

    return authenticate
