"""AWS credentials: a static key from the environment, or botocore's credential chain.

The chain (profiles, SSO, web identity, container and instance roles) needs the extra `callsheet[s3]`; botocore is
imported only then. A thread refreshes temporary credentials before they expire, so signing never waits for AWS.
No error message contains a secret or a URL.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from callsheet.blobs.base import CredentialsExpiredError, StorageRefusedError
from callsheet.blobs.s3.sigv4 import S3Credentials

CredentialSource = Callable[[], S3Credentials]
"""Returns the current credentials, or raises CredentialsUnavailableError."""
_REMAINING_SECONDS_MIN: Final = 2.0
"""Credentials that expire sooner are not used: a URL is valid for at least a second, but never longer than its
credentials."""
_CHECK_EVERY_SECONDS: Final = 10.0
_HEADER_VALUE = re.compile(r"[!-~]*\Z")
_HOW_TO_CONFIGURE: Final = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure a profile, SSO, web identity, or a container or "
    "instance role."
)


class CredentialsUnavailableError(Exception):
    """The credential chain returned no credentials; the message says why."""


def open_credentials(environ: Mapping[str, str], region: str) -> CredentialSource:
    """Return the credentials to sign with; temporary ones are fetched now and refreshed in the background."""
    access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if access_key and secret_key:
        static = S3Credentials(access_key, secret_key, environ.get("AWS_SESSION_TOKEN", ""))
        return lambda: static
    if access_key or secret_key:
        missing = "AWS_SECRET_ACCESS_KEY" if access_key else "AWS_ACCESS_KEY_ID"
        raise StorageRefusedError(f"{missing} is not set. Set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
    try:
        credentials = RefreshingCredentials(botocore_source(region))
    except CredentialsUnavailableError as error:
        raise StorageRefusedError(f"No AWS credentials for S3: {error}. {_HOW_TO_CONFIGURE}") from None
    credentials.start()
    return credentials


def botocore_source(region: str) -> CredentialSource:
    """Return a source that reads botocore's credential chain; `region` is where STS is called."""
    try:
        import botocore.session  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise StorageRefusedError(
            "S3 needs AWS credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. For profiles, SSO, web "
            "identity, container and instance roles, install the extra `s3`: in a checkout, run pip install '.[s3]'."
        ) from None
    session = botocore.session.Session()
    session.set_config_variable("region", region)

    def fetch() -> S3Credentials:
        try:
            return _freeze(session.get_credentials())  # cached by the session, and refreshed when frozen
        except CredentialsUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - botocore raises its own errors, OSError, ValueError, RuntimeError
            raise CredentialsUnavailableError(_describe_error(error)) from None

    return fetch


def _freeze(credentials: Any) -> S3Credentials:
    """Convert botocore's credentials; this refreshes them if they expire within 15 minutes."""
    if credentials is None:
        raise CredentialsUnavailableError("the credential chain is empty")
    frozen = credentials.get_frozen_credentials()
    parts = (frozen.access_key or "", frozen.secret_key or "", frozen.token or "")
    if not all(parts[:2]) or not all(map(_HEADER_VALUE.match, parts)):
        raise CredentialsUnavailableError("the credential chain returned an invalid key")
    expires_at = getattr(credentials, "_expiry_time", None)  # not public, but the AWS CLI reads it too
    return S3Credentials(*parts, expires_at and expires_at.timestamp())


def _describe_error(error: Exception) -> str:
    """Name an error without its message, which may contain a response body, a URL or a file path."""
    code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
    return f"{type(error).__name__} {code}".strip()


class RefreshingCredentials:
    """The current credentials of a source. Calling it is fast and does no I/O."""

    def __init__(self, source: CredentialSource, now: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now = now
        self._current = source()
        self._failure = "not refreshed yet"
        self._closing = threading.Event()

    def __call__(self) -> S3Credentials:
        current = self._current
        if current.remaining_seconds(self._now()) < _REMAINING_SECONDS_MIN:
            raise CredentialsExpiredError(self._failure)
        return current

    def start(self, check_every_seconds: float = _CHECK_EVERY_SECONDS) -> None:
        """Start the refresh thread, unless the credentials do not expire."""
        if self._current.expires_at is not None:
            threading.Thread(
                target=self._refresh_loop, args=(check_every_seconds,), name="callsheet-credentials", daemon=True
            ).start()

    def close(self) -> None:
        self._closing.set()

    def refresh(self) -> None:
        """Read the source again. If it fails, the old credentials stay in use until they expire."""
        try:
            self._current = self._source()
            self._failure = "the refreshed credentials have expired too"
        except CredentialsUnavailableError as error:
            self._failure = str(error)

    def _refresh_loop(self, check_every_seconds: float) -> None:
        while not self._closing.wait(check_every_seconds):
            self.refresh()
