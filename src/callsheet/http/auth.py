"""Who is asking: API keys, kept only as hashes, and short-lived signed tokens of a single user."""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from callsheet.core.machine import Actor
from callsheet.core.rows import ApiKey, Worker
from callsheet.engine.readlane import ReadLane
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import MACHINE, OPERATOR, USER, WORKER

T = TypeVar("T")
KEY_PREFIX, TOKEN_PREFIX, WORKER_PREFIX = "cs_", "cst_", "csw_"
_SECRET_BYTES = 32
_CHARS_MAX = 1_024
_FRESH_SECONDS = 1.0
"""How long another server's revocation may go unnoticed; this server's own counts at once."""
_KNOWN_MAX = 10_000
_NEVER = (float("-inf"), None)
DEFAULT_TENANT = "default"


class Who(msgspec.Struct, frozen=True, gc=False):
    """The caller: what it may do, for which tenant, as whom."""

    role: str
    tenant: str
    id: str
    user: str | None = None
    suspended: bool = False
    """The tenant may look, and change nothing."""
    worker: Worker | None = None
    """The row of a registered worker, as it was a moment ago."""

    @property
    def caller(self) -> str:
        """Whose streams count together."""
        return f"{self.tenant}/{self.id}"

    @property
    def actor(self) -> Actor:
        return "admin" if self.role in {OPERATOR, "admin"} else "user"


class Signed:
    """Signs small facts that come back later: cursors, quotes, users' tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, purpose: str, fact: Any) -> str:
        """Return a fact as text that only we can make."""
        body = msgspec.msgpack.encode(fact)
        return _written(self._mark(purpose, body) + body)

    def read(self, purpose: str, text: str, shape: type[T]) -> T | None:
        """Return the fact, or None if we did not make it for this purpose."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            mark, body = raw[:16], raw[16:]
            if _written(raw) != text or not hmac.compare_digest(mark, self._mark(purpose, body)):
                return None  # base64 has many texts for the same bytes, and ours is one of them
            return msgspec.msgpack.decode(body, type=shape)
        except (ValueError, msgspec.MsgspecError):
            return None

    def _mark(self, purpose: str, body: bytes) -> bytes:
        return hmac.digest(self._secret, purpose.encode() + b"\0" + body, "sha256")[:16]


def _written(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class UserToken(msgspec.Struct, frozen=True, array_like=True):
    """What a user's token says: whose jobs may be seen, until when (unix seconds), and with which key it ends."""

    tenant: str
    user: str
    until: int
    key: str


def new_secret(prefix: str = KEY_PREFIX) -> str:
    """Make a key's secret, or a worker's token."""
    return prefix + secrets.token_urlsafe(_SECRET_BYTES)


def hashed(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Keys:
    """Finds out who is asking."""

    def __init__(self, reads: ReadLane, signed: Signed) -> None:
        self._reads = reads
        self._signed = signed
        self._known: dict[str, tuple[float, Who | None]] = {}

    async def who(self, request: Request, *, in_query: bool = False) -> Who:
        """Return the caller, or answer 401; asked again, say whether it is still let in."""
        if request.secret is None:
            request.secret = _secret(request, in_query=in_query)
        secret, token = request.secret, None
        if secret.startswith(TOKEN_PREFIX):
            token = self._token(secret)
            query, mark = "api_key_by_id", token.key
        else:
            query = "worker_by_token" if secret.startswith(WORKER_PREFIX) else "api_key_by_hash"
            mark = hashed(secret)
        at, who = self._known.get(mark, _NEVER)
        if time.monotonic() - at >= _FRESH_SECONDS:
            who = await self._looked_up(query, mark)
        if who is None:
            raise _unknown()
        if token is not None:
            return Who(USER, token.tenant, f"user:{token.user}", token.user, suspended=who.suspended)
        tenant = request.header(b"callsheet-tenant")
        if not tenant or tenant == who.tenant:
            return who
        if who.role == OPERATOR:
            return msgspec.structs.replace(who, tenant=tenant)
        raise Problem(403, "forbidden", "This key is not of the tenant that Callsheet-Tenant names.")

    def forget(self) -> None:
        """Look every key up again: one was revoked, or a tenant suspended."""
        self._known = {}

    def token(self, who: Who, user: str, seconds: int) -> str:
        """Make a token with which a browser sees one user's jobs."""
        until = int(time.time()) + seconds
        return TOKEN_PREFIX + self._signed.sign("user", UserToken(who.tenant, user, until, who.id))

    def _token(self, secret: str) -> UserToken:
        token = self._signed.read("user", secret.removeprefix(TOKEN_PREFIX), UserToken)
        if token is None or token.until < time.time():
            raise _unknown()
        return token

    async def _looked_up(self, query: str, mark: str) -> Who | None:
        """Read whose key or token this is; None if it lets nobody in."""
        known, now = self._known, time.monotonic()
        rows = await self._reads.fetch(query, mark=mark)
        who = _WHO[query](rows[0]) if rows else None
        if len(known) >= _KNOWN_MAX:
            known.clear()
        known[mark] = (now, who)  # what was read before `forget` is written where nobody looks any more
        return who


def _secret(request: Request, *, in_query: bool) -> str:
    """Return the key or token of a request: from its header; a user's token also from the query, where that may be."""
    given = request.header(b"authorization")
    if b"token=" in request.query_string and (tokens := request.take("token")):
        if given is not None or not in_query or len(tokens) > 1 or not tokens[0].startswith(TOKEN_PREFIX):
            raise _refused("key_in_address", "A key does not belong in an address: send it as Authorization: Bearer.")
        given = f"Bearer {tokens[0]}"
    if given is None:
        raise _refused("missing_key", "Send your key: Authorization: Bearer cs_….")
    scheme, _, secret = given.partition(" ")
    if scheme.lower() != "bearer" or not secret or len(secret) > _CHARS_MAX or not secret.isascii():
        raise _refused("invalid_key", "The Authorization header is not a bearer key.")
    return secret


def _program(row: Sequence[Any]) -> Who | None:
    """Return whose key this is: the row of its tenant's status and the key."""
    key = ApiKey(*row[1:])
    if key.revoked_at is not None or (key.expires_at is not None and key.expires_at < time.time() * 1_000_000):
        return None
    suspended = row[0] == "suspended"
    if key.tenant or key.role == WORKER:
        return Who(key.role, key.tenant, key.id, suspended=suspended)
    return Who(OPERATOR, DEFAULT_TENANT, key.id, suspended=suspended)


def _machine(row: Sequence[Any]) -> Who:
    worker = Worker(*row)
    return Who(MACHINE, "", f"worker:{worker.id}", worker=worker)


_WHO: dict[str, Callable[[Sequence[Any]], Who | None]] = {
    "api_key_by_hash": _program,
    "api_key_by_id": _program,
    "worker_by_token": _machine,
}


def _unknown() -> Problem:
    return _refused("invalid_key", "This key is not known, or no longer valid.")


def _refused(code: str, message: str) -> Problem:
    return Problem(401, code, message, {"www-authenticate": "Bearer"})
