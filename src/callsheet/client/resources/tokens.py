"""`client.tokens`: short-lived tokens for browsers."""

from callsheet.api.admin import Token
from callsheet.client.method_binding import call
from callsheet.client.operation_effects import Operation
from callsheet.client.requests_and_pages import json_request, path, send
from callsheet.client.resource import D, Resource


class Tokens(Resource[D]):
    """Create short-lived tokens for browsers."""

    @call
    def create(self, user: str, expires_in_seconds: int = 600) -> Operation[Token]:
        """Create a short-lived token with which a browser reads one user's jobs and files."""
        body = {"user": user, "expires_in_seconds": expires_in_seconds}
        return send(self, Token, json_request("POST", path("tokens"), body, idempotent=True))
