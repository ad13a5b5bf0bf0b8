"""Authentication by API key, worker token or short-lived user token."""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from callsheet.core.model.errors import InvalidWorkerToken
from callsheet.core.model.state_machines import Actor
from callsheet.dispatch.fleet import RegisteredWorker
from callsheet.engine.reads.facade import Reads
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import OPERATOR, REGISTERED_WORKER, USER, WORKER
from callsheet.queries.credentials import KeyOwner, find_key_by_hash, find_key_by_id, find_worker_by_token

T = TypeVar("T")
KEY_PREFIX, TOKEN_PREFIX, WORKER_PREFIX = "cs_", "cst_", "csw_"
_SECRET_BYTES = 32
_SECRET_CHARS_MAX = 1_024
_CACHE_SECONDS = 1.0
"""A key that was revoked on another server is accepted for this long. On the same server it is refused at once."""
_CACHE_MAX = 10_000
_NOT_CACHED = (float("-inf"), None)
DEFAULT_TENANT = "default"


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who sent a request: role, tenant, key and, with a user token, user."""

    role: str
    tenant: str
    id: str
    user: str | None = None
    suspended: bool = False
    """The tenant is suspended: it can read, but not change anything."""
    worker: RegisteredWorker | None = None
    """The row of a registered worker, at most a second old."""

    @property
    def stream_owner(self) -> str:
        """Streams with the same owner count against one limit."""
        return f"{self.tenant}/{self.id}"

    @property
    def actor(self) -> Actor:
        return "admin" if self.role in {OPERATOR, "admin"} else "user"


CallerLookup = Callable[[Reads, str], Awaitable[Caller | None]]
"""Reads a caller by the hash of its secret or by the id of its key; None if the secret is not valid."""


class Signer:
    """Signs small values that clients send back: cursors, quotes, user tokens, file URLs."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, purpose: str, payload: Any) -> str:
        """Return a value as signed text, valid for one purpose."""
        body = msgspec.msgpack.encode(payload)
        return _encode_base64(self._signature_of(purpose, body) + body)

    def read(self, purpose: str, text: str, shape: type[T]) -> T | None:
        """Return the signed value, or None if the signature is not valid for this purpose."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            signature, body = raw[:16], raw[16:]
            if _encode_base64(raw) != text or not hmac.compare_digest(signature, self._signature_of(purpose, body)):
                return None  # several base64 texts decode to the same bytes: accept only the one that was issued
            return msgspec.msgpack.decode(body, type=shape)
        except (ValueError, msgspec.MsgspecError):
            return None

    def _signature_of(self, purpose: str, body: bytes) -> bytes:
        return hmac.digest(self._secret, purpose.encode() + b"\0" + body, "sha256")[:16]


def _encode_base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


class UserToken(msgspec.Struct, frozen=True, array_like=True):
    """Contents of a user token: tenant, user, expiry in Unix seconds, and the key that created it."""

    tenant: str
    user: str
    expires_at: int
    key: str


def new_secret(prefix: str = KEY_PREFIX) -> str:
    """Generate the secret of a key, or a worker's token."""
    return prefix + secrets.token_urlsafe(_SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, which is what the database stores."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Authenticator:
    """Finds the caller of a request by its key or token. Callers are cached for a short time."""

    def __init__(self, reads: Reads, signer: Signer) -> None:
        self._reads = reads
        self._signer = signer
        self._cache: dict[str, tuple[float, Caller | None]] = {}

    async def authenticate(self, request: Request, *, in_query: bool = False) -> Caller:
        """Return the caller or raise 401. Streams call it repeatedly, so that they end when their key is revoked."""
        if request.secret is None:
            request.secret = _secret(request, in_query=in_query)
        secret, token = request.secret, None
        look_up: CallerLookup
        if len(secret) > _SECRET_CHARS_MAX or not secret.isascii():
            raise _invalid_key()
        if secret.startswith(TOKEN_PREFIX):
            token = self._read_user_token(secret)
            look_up, cache_key = _caller_by_key_id, token.key
        else:
            look_up = _caller_by_worker_token if secret.startswith(WORKER_PREFIX) else _caller_by_key_hash
            cache_key = hash_secret(secret)
        cached_at, caller = self._cache.get(cache_key, _NOT_CACHED)
        if time.monotonic() - cached_at >= _CACHE_SECONDS:
            caller = await self._look_up(look_up, cache_key)
        if caller is None:
            raise _invalid_worker_token() if secret.startswith(WORKER_PREFIX) else _invalid_key()
        if token is not None:
            return Caller(USER, token.tenant, f"user:{token.user}", token.user, suspended=caller.suspended)
        tenant = request.header(b"callsheet-tenant")
        if not tenant or tenant == caller.tenant:
            return caller
        if caller.role == OPERATOR:
            return msgspec.structs.replace(caller, tenant=tenant)
        raise Problem(403, "forbidden", "Callsheet-Tenant names another tenant than the key's. Leave the header out.")

    def invalidate(self) -> None:
        """Clear the cache. Call it after a key, a worker or a tenant was changed."""
        self._cache = {}

    def create_user_token(self, caller: Caller, user: str, seconds: int) -> str:
        """Create a token with which a browser reads one user's jobs."""
        expires_at = int(time.time()) + seconds
        return TOKEN_PREFIX + self._signer.sign("user", UserToken(caller.tenant, user, expires_at, caller.id))

    def _read_user_token(self, secret: str) -> UserToken:
        token = self._signer.read("user", secret.removeprefix(TOKEN_PREFIX), UserToken)
        if token is None or token.expires_at < time.time():
            raise _invalid_key()
        return token

    async def _look_up(self, look_up: CallerLookup, cache_key: str) -> Caller | None:
        """Read a caller from the database and cache it."""
        cache, now = self._cache, time.monotonic()
        caller = await look_up(self._reads, cache_key)
        if len(cache) >= _CACHE_MAX:
            cache.clear()
        cache[cache_key] = (now, caller)  # `invalidate` replaces the dictionary, so an outdated caller is not cached
        return caller


def _secret(request: Request, *, in_query: bool) -> str:
    """Return the key or token from the header, or a user token from the query where the route accepts one."""
    authorization = request.header(b"authorization")
    if b"token=" in request.query_string and (tokens := request.pop_query_parameter("token")):
        if authorization is not None or not in_query or len(tokens) > 1 or not tokens[0].startswith(TOKEN_PREFIX):
            raise _unauthorized("key_in_url", "The URL contains a key. Send it as Authorization: Bearer instead.")
        authorization = f"Bearer {tokens[0]}"
    if authorization is None:
        raise missing_key("The request has no key. Send Authorization: Bearer cs_….")
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret or len(secret) > _SECRET_CHARS_MAX or not secret.isascii():
        raise _unauthorized(
            "invalid_key", "The Authorization header is not a bearer key. Send Authorization: Bearer cs_…."
        )
    return secret


async def _caller_by_key_hash(reads: Reads, secret_hash: str) -> Caller | None:
    return _caller_from_key(await find_key_by_hash(reads, secret_hash))


async def _caller_by_key_id(reads: Reads, key_id: str) -> Caller | None:
    return _caller_from_key(await find_key_by_id(reads, key_id))


async def _caller_by_worker_token(reads: Reads, token_hash: str) -> Caller | None:
    worker = await find_worker_by_token(reads, token_hash)
    return None if worker is None else Caller(REGISTERED_WORKER, "", f"worker:{worker.id}", worker=worker)


def _caller_from_key(owner: KeyOwner | None) -> Caller | None:
    if owner is None:
        return None
    if owner.tenant or owner.role == WORKER:
        return Caller(owner.role, owner.tenant, owner.key_id, suspended=owner.suspended)
    return Caller(OPERATOR, DEFAULT_TENANT, owner.key_id, suspended=owner.suspended)


def missing_key(message: str) -> Problem:
    """Return the error for a request without a key."""
    return _unauthorized("missing_key", message)


def _invalid_key() -> Problem:
    return _unauthorized("invalid_key", "This key is unknown, revoked or expired. Send another one.")


def _invalid_worker_token() -> Problem:
    refusal = InvalidWorkerToken()
    return _unauthorized(refusal.code, refusal.message)


def _unauthorized(code: str, message: str) -> Problem:
    return Problem(401, code, message, {"www-authenticate": "Bearer"})
