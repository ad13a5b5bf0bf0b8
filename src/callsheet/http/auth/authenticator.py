"""Who is asking: API keys, kept only as hashes, and short-lived signed tokens of a single user."""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from callsheet.core.model.rows import ApiKey, Worker
from callsheet.core.model.state_machines import Actor
from callsheet.engine.reads.facade import Reads
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import OPERATOR, REGISTERED_WORKER, USER, WORKER

T = TypeVar("T")
KEY_PREFIX, TOKEN_PREFIX, WORKER_PREFIX = "cs_", "cst_", "csw_"
_SECRET_BYTES = 32
_SECRET_CHARS_MAX = 1_024
_CACHE_SECONDS = 1.0
"""How long another server's revocation may go unnoticed; this server's own counts at once."""
_CACHE_MAX = 10_000
_NOT_CACHED = (float("-inf"), None)
DEFAULT_TENANT = "default"


class Caller(msgspec.Struct, frozen=True, gc=False):
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
    def stream_owner(self) -> str:
        """Whose streams count together."""
        return f"{self.tenant}/{self.id}"

    @property
    def actor(self) -> Actor:
        return "admin" if self.role in {OPERATOR, "admin"} else "user"


class Signer:
    """Signs small facts that come back later: cursors, quotes, users' tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, purpose: str, payload: Any) -> str:
        """Return a fact as text that only we can make."""
        body = msgspec.msgpack.encode(payload)
        return _encode_base64(self._signature_of(purpose, body) + body)

    def read(self, purpose: str, text: str, shape: type[T]) -> T | None:
        """Return the fact, or None if we did not make it for this purpose."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            mark, body = raw[:16], raw[16:]
            if _encode_base64(raw) != text or not hmac.compare_digest(mark, self._signature_of(purpose, body)):
                return None  # base64 has many texts for the same bytes, and ours is one of them
            return msgspec.msgpack.decode(body, type=shape)
        except (ValueError, msgspec.MsgspecError):
            return None

    def _signature_of(self, purpose: str, body: bytes) -> bytes:
        return hmac.digest(self._secret, purpose.encode() + b"\0" + body, "sha256")[:16]


def _encode_base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class UserToken(msgspec.Struct, frozen=True, array_like=True):
    """What a user's token says: whose jobs may be seen, until when (unix seconds), and with which key it ends."""

    tenant: str
    user: str
    expires_at: int
    key: str


def new_secret(prefix: str = KEY_PREFIX) -> str:
    """Make a key's secret, or a worker's token."""
    return prefix + secrets.token_urlsafe(_SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Authenticator:
    """Finds out who is asking."""

    def __init__(self, reads: Reads, signer: Signer) -> None:
        self._reads = reads
        self._signer = signer
        self._cache: dict[str, tuple[float, Caller | None]] = {}

    async def authenticate(self, request: Request, *, in_query: bool = False) -> Caller:
        """Return the caller, or answer 401; asked again, say whether it is still let in."""
        if request.secret is None:
            request.secret = _secret(request, in_query=in_query)
        secret, token = request.secret, None
        if secret.startswith(TOKEN_PREFIX):
            token = self._read_user_token(secret)
            query, mark = "api_key_by_id", token.key
        else:
            query = "worker_by_token" if secret.startswith(WORKER_PREFIX) else "api_key_by_hash"
            mark = hash_secret(secret)
        at, caller = self._cache.get(mark, _NOT_CACHED)
        if time.monotonic() - at >= _CACHE_SECONDS:
            caller = await self._look_up(query, mark)
        if caller is None:
            raise _invalid_key()
        if token is not None:
            return Caller(USER, token.tenant, f"user:{token.user}", token.user, suspended=caller.suspended)
        tenant = request.header(b"callsheet-tenant")
        if not tenant or tenant == caller.tenant:
            return caller
        if caller.role == OPERATOR:
            return msgspec.structs.replace(caller, tenant=tenant)
        raise Problem(403, "forbidden", "This key is not of the tenant that Callsheet-Tenant names.")

    def invalidate(self) -> None:
        """Look every key up again: one was revoked, or a tenant suspended."""
        self._cache = {}

    def create_user_token(self, caller: Caller, user: str, seconds: int) -> str:
        """Make a token with which a browser sees one user's jobs."""
        expires_at = int(time.time()) + seconds
        return TOKEN_PREFIX + self._signer.sign("user", UserToken(caller.tenant, user, expires_at, caller.id))

    def _read_user_token(self, secret: str) -> UserToken:
        token = self._signer.read("user", secret.removeprefix(TOKEN_PREFIX), UserToken)
        if token is None or token.expires_at < time.time():
            raise _invalid_key()
        return token

    async def _look_up(self, query: str, mark: str) -> Caller | None:
        """Read whose key or token this is; None if it lets nobody in."""
        known, now = self._cache, time.monotonic()
        rows = await self._reads.lookup(query, key=mark)
        caller = _CALLER_FROM_ROW[query](rows[0]) if rows else None
        if len(known) >= _CACHE_MAX:
            known.clear()
        known[mark] = (now, caller)  # what was read before `forget` is written where nobody looks any more
        return caller


def _secret(request: Request, *, in_query: bool) -> str:
    """Return the key or token of a request: from its header; a user's token also from the query, where that may be."""
    given = request.header(b"authorization")
    if b"token=" in request.query_string and (tokens := request.pop_query_parameter("token")):
        if given is not None or not in_query or len(tokens) > 1 or not tokens[0].startswith(TOKEN_PREFIX):
            raise _unauthorized("key_in_url", "A key does not belong in an address: send it as Authorization: Bearer.")
        given = f"Bearer {tokens[0]}"
    if given is None:
        raise _unauthorized("missing_key", "Send your key: Authorization: Bearer cs_….")
    scheme, _, secret = given.partition(" ")
    if scheme.lower() != "bearer" or not secret or len(secret) > _SECRET_CHARS_MAX or not secret.isascii():
        raise _unauthorized("invalid_key", "The Authorization header is not a bearer key.")
    return secret


def _caller_from_key(row: Sequence[Any]) -> Caller | None:
    """Return whose key this is: the row of its tenant's status and the key."""
    key = ApiKey(*row[1:])
    if key.revoked_at is not None or (key.expires_at is not None and key.expires_at < time.time() * 1_000_000):
        return None
    suspended = row[0] == "suspended"
    if key.tenant or key.role == WORKER:
        return Caller(key.role, key.tenant, key.id, suspended=suspended)
    return Caller(OPERATOR, DEFAULT_TENANT, key.id, suspended=suspended)


def _caller_from_worker(row: Sequence[Any]) -> Caller:
    worker = Worker(*row)
    return Caller(REGISTERED_WORKER, "", f"worker:{worker.id}", worker=worker)


_CALLER_FROM_ROW: dict[str, Callable[[Sequence[Any]], Caller | None]] = {
    "api_key_by_hash": _caller_from_key,
    "api_key_by_id": _caller_from_key,
    "worker_by_token": _caller_from_worker,
}


def _invalid_key() -> Problem:
    return _unauthorized("invalid_key", "This key is not known, or no longer valid.")


def _unauthorized(code: str, message: str) -> Problem:
    return Problem(401, code, message, {"www-authenticate": "Bearer"})
