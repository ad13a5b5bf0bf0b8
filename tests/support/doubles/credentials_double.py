"""A double of the AWS credential sources: EC2 instance metadata (IMDSv2 only), a container's endpoint, and STS."""

import json
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from tests.support.doubles.http_double import HttpDouble
from tests.support.doubles.s3_double import ACCESS, SECRET

ROLE, PASS = "films-role", "Bearer canary-pass"
ARN = "arn:aws:iam::123456789012:role/films"
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_TOKEN = "canary-metadata-token"


class DoubleCredentials(NamedTuple):
    """The credentials that the double returns."""

    token: str
    expires_at: float
    access: str = ACCESS
    secret: str = SECRET

    def json_fields(self) -> dict[str, str]:
        expires = datetime.fromtimestamp(self.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"AccessKeyId": self.access, "SecretAccessKey": self.secret, "Token": self.token, "Expiration": expires}


class CredentialsDouble(HttpDouble):
    """The server: tests may change `keys`; a non-zero `error_status` is the answer to every request."""

    def __init__(self, keys: DoubleCredentials) -> None:
        self.keys = keys
        self.role = ROLE
        self.error_status = 0
        self.seen: list[tuple[str, str]] = []
        self.required_token = PASS
        """The token that a container or a service account must send."""
        self.sessions: list[str] = []
        """The session names of assumed roles."""
        double = self

        class Bound(_Handler):
            source = double

        super().__init__(Bound)

    @property
    def credentials_fetched(self) -> int:
        """The number of requests for credentials."""
        return sum(path in {_ROLES + self.role, "/creds", "/"} for _, path in self.seen)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    source: CredentialsDouble
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_: Any) -> None:
        return

    def handle_all(self) -> None:
        source = self.source
        source.seen.append((self.command, self.path))
        status, text = (source.error_status, "canary: broken") if source.error_status else self._find_answer()
        body = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")  # botocore never closes the connections that it keeps
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = handle_all  # noqa: N815 - the names that http.server calls

    def _find_answer(self) -> tuple[int, str]:
        if self.command == "POST" and self.path == "/":
            return self._assume_role()
        credentials = json.dumps({"Code": "Success", **self.source.keys.json_fields()})
        match self.command, self.path:
            case "PUT", "/latest/api/token":
                return (200, _TOKEN) if self.headers.get("x-aws-ec2-metadata-token-ttl-seconds") else (400, "")
            case "GET", "/creds":
                authorized = self.headers.get("authorization", "") == self.source.required_token
                return (200, credentials) if authorized else (403, "canary: no")
            case "GET", path if path.startswith(_ROLES):
                return self._read_metadata(path.removeprefix(_ROLES), credentials)
        return 404, ""

    def _assume_role(self) -> tuple[int, str]:
        """Answer as STS does, in XML."""
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        if self.headers.get("authorization"):
            return 400, _error("IncompleteSignature")
        if form["Action"] != ["AssumeRoleWithWebIdentity"] or form["Version"] != ["2011-06-15"]:
            return 400, _error("InvalidAction")
        if form["RoleArn"] != [ARN]:
            return 403, _error("AccessDenied")
        if form["WebIdentityToken"] != [self.source.required_token]:
            return 400, _error("InvalidIdentityToken")
        self.source.sessions += form["RoleSessionName"]
        return 200, _sts_response(self.source.keys)

    def _read_metadata(self, role: str, credentials: str) -> tuple[int, str]:
        """Answer as IMDSv2 does: nothing without its token."""
        if self.headers.get("x-aws-ec2-metadata-token") != _TOKEN:
            return 401, ""
        if not self.source.role:
            return 404, ""
        if not role:
            return 200, self.source.role
        return (200, credentials) if role == self.source.role else (404, "")


def _sts_response(keys: DoubleCredentials) -> str:
    """Return the XML with which STS returns the credentials of a role."""
    values = keys.json_fields()
    values = {**values, "SessionToken": values.pop("Token")}
    fields = "".join(f"<{name}>{value}</{name}>" for name, value in values.items())
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
