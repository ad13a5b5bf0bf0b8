"""A double of those who lend keys: an EC2 instance's metadata (IMDSv2 only), a container's host, and STS."""

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs

from tests.support.doubles.s3_double import ACCESS, SECRET

ROLE, PASS = "films-role", "Bearer canary-pass"
ARN = "arn:aws:iam::123456789012:role/films"
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_TOKEN = "canary-metadata-token"


class DoubleCredentials(NamedTuple):
    """What is lent."""

    token: str
    expires_at: float
    access: str = ACCESS
    secret: str = SECRET

    def said(self) -> dict[str, str]:
        ends = datetime.fromtimestamp(self.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"AccessKeyId": self.access, "SecretAccessKey": self.secret, "Token": self.token, "Expiration": ends}


class CredentialsDouble:
    """The server: `keys` may change, `failing` makes it answer with a status, `said` puts other words in its mouth."""

    def __init__(self, keys: DoubleCredentials) -> None:
        self.keys = keys
        self.role = ROLE
        self.error_status = 0
        self.said: str | None = None
        self.seen: list[tuple[str, str]] = []
        self.required_token = PASS
        """What a container must say, or a service account, to be given keys."""
        self.sessions: list[str] = []
        """The names under which roles were taken."""
        double = self

        class Bound(_Handler):
            lender = double

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="lender", daemon=True)

    @property
    def credentials_fetched(self) -> int:
        """How often keys were asked for."""
        return sum(path in {_ROLES + self.role, "/creds", "/"} for _, path in self.seen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    lender: CredentialsDouble
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_: Any) -> None:
        return

    def handle_all(self) -> None:
        lender = self.lender
        lender.seen.append((self.command, self.path))
        status, text = (lender.error_status, "canary: broken") if lender.error_status else self._found()
        body = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")  # botocore never closes the connections that it keeps
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = handle_all  # noqa: N815 - as http.server looks for them

    def _found(self) -> tuple[int, str]:
        lender = self.lender
        if self.command == "POST" and self.path == "/":
            return self._by_identity()
        lent = json.dumps({"Code": "Success", **lender.keys.said()}) if lender.said is None else lender.said
        match self.command, self.path:
            case "PUT", "/latest/api/token":
                return (200, _TOKEN) if self.headers.get("x-aws-ec2-metadata-token-ttl-seconds") else (400, "")
            case "GET", "/creds":
                return (
                    (200, lent)
                    if self.headers.get("authorization", "") == lender.required_token
                    else (403, "canary: no")
                )
            case "GET", path if path.startswith(_ROLES):
                return self._by_role(path.removeprefix(_ROLES), lent)
        return 404, ""

    def _by_identity(self) -> tuple[int, str]:
        """Answer as STS does, whose words are XML."""
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        if self.headers.get("authorization"):
            return 400, _error("IncompleteSignature")
        if form["Action"] != ["AssumeRoleWithWebIdentity"] or form["Version"] != ["2011-06-15"]:
            return 400, _error("InvalidAction")
        if form["RoleArn"] != [ARN]:
            return 403, _error("AccessDenied")
        if form["WebIdentityToken"] != [self.lender.required_token]:
            return 400, _error("InvalidIdentityToken")
        if self.lender.said is not None:
            return 200, self.lender.said
        self.lender.sessions += form["RoleSessionName"]
        return 200, sts_response(self.lender.keys)

    def _by_role(self, role: str, lent: str) -> tuple[int, str]:
        """Answer as IMDSv2: nothing without the token."""
        if self.headers.get("x-aws-ec2-metadata-token") != _TOKEN:
            return 401, ""
        if not self.lender.role:
            return 404, ""
        return (200, self.lender.role) if not role else (200, lent) if role == self.lender.role else (404, "")


def sts_response(keys: DoubleCredentials, **other: str) -> str:
    """Say as STS which keys a role has."""
    said = keys.said()
    said = {**said, "SessionToken": said.pop("Token"), **other}
    fields = "".join(f"<{name}>{value}</{name}>" for name, value in said.items())
    return (
        f'<AssumeRoleWithWebIdentityResponse xmlns="{_STS}"><AssumeRoleWithWebIdentityResult>'
        f"<SubjectFromWebIdentityToken>system:serviceaccount:films:callsheet</SubjectFromWebIdentityToken>"
        f"<AssumedRoleUser><Arn>{ARN}/callsheet</Arn><AssumedRoleId>AROA:callsheet</AssumedRoleId></AssumedRoleUser>"
        f"<Credentials>{fields}</Credentials></AssumeRoleWithWebIdentityResult>"
        "<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleWithWebIdentityResponse>"
    )


def _error(code: str) -> str:
    return (
        f'<ErrorResponse xmlns="{_STS}"><Error><Type>Sender</Type><Code>{code}</Code>'
        "<Message>canary: no</Message></Error><RequestId>1</RequestId></ErrorResponse>"
    )
