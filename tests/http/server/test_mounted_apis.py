"""A second API beside /v1: its own key header, error format, bodies and port, with the same path names as /v1."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from callsheet.app import Callsheet
from callsheet.core.model.errors import BadInput
from callsheet.http.auth.key_location import authenticate_by_header
from callsheet.http.server.body.form import UploadedFile
from callsheet.http.server.cors import Cors
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.path_tree import PathTree, RouteConflictError
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request, Send
from callsheet.http.server.route import (
    FORM,
    JSON,
    MULTIPART,
    PUBLIC,
    READERS,
    WRITERS,
    Response,
    Route,
    StreamingResponse,
)
from callsheet.settings import HttpSettings
from tests.support.processes.live_server import LiveServer

LIMITS = HttpSettings(
    form_fields_max=4,
    form_field_bytes_max=100,
    form_file_bytes_max=2_000,
    form_part_header_bytes_max=200,
    multipart_body_bytes_max=5_000,
    multipart_memory_bytes_max=500,
    cors_origins=("https://native.example",),
)
SECOND_ORIGIN = "https://second.example"


class SketchForm(Struct, forbid_unknown_fields=True):
    """The body of a submit to the second API."""

    prompt: str
    size: int = 1
    tags: list[str] = []
    image: UploadedFile | None = None


async def submit(state: Any, request: Request) -> Response:
    _ = state
    form: SketchForm = request.content
    file = None
    if form.image is not None:
        file = {
            "name": form.image.filename, "type": form.image.media_type, "size": form.image.size,
            "first": form.image.read(4).decode(), "rest": len(form.image.read()),
        }  # fmt: skip
    return Response({
        "prompt": form.prompt, "size": form.size, "tags": form.tags, "file": file, "by": request.caller.role,
    })  # fmt: skip


async def read_job(state: Any, request: Request) -> Response:
    _ = state
    return Response({"id": request.params["name"], "tenant": request.caller.tenant})


async def stream_words(state: Any, request: Request) -> StreamingResponse:
    _ = state

    async def send_words(send: Send) -> None:
        headers = [*request.response_headers(), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for word in (b"one ", b"two "):
            await send({"type": "http.response.body", "body": word, "more_body": True})
        await send({"type": "http.response.body", "body": b"three"})

    return StreamingResponse(send_words)


async def fail(state: Any, request: Request) -> Response:
    _ = state, request
    raise RuntimeError("a secret detail")


async def root(state: Any, request: Request) -> Response:
    _ = state, request
    return Response({"second": True})


def render_detail(problem: Problem, request: Request) -> Response:
    if problem.code == "route_not_found" and request.scope["raw_path"].endswith(b"/broken-renderer"):
        raise RuntimeError("the renderer fails")
    body = {"detail": problem.message, "kind": problem.code.upper()}
    return Response(body, problem.status, tuple(problem.headers.items()))


SECOND = Api(
    "/second",
    (
        Route("GET", "/", root, PUBLIC, "The API's root"),
        Route("POST", "/jobs", submit, WRITERS, "Submit", request=SketchForm, body_types=(JSON, FORM, MULTIPART)),
        Route("POST", "/forms", submit, WRITERS, "Submit a form", request=SketchForm, body_types=(FORM,)),
        Route("GET", "/jobs/{name}", read_job, READERS, "Read a job"),
        Route("GET", "/jobs/latest/words", stream_words, PUBLIC, "Stream words"),
        Route("GET", "/jobs/{name}/input", read_job, READERS, "Read a job's input"),
        Route("GET", "/fail", fail, PUBLIC, "Fail"),
        Route("POST", "/limited", submit, WRITERS, "Submit"),
    ),
    authenticate_by_header("X-Api-Key", "Key "),
    render_detail,
    Cors((SECOND_ORIGIN,), request_headers=("x-api-key",)),
    port=0,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data = tmp_path_factory.mktemp("mounted")
    with LiveServer(data / "callsheet.db", data, LIMITS, apis=[SECOND]) as served:
        yield served


@pytest.fixture(params=["prefix", "port"])
def second(server: LiveServer, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client of the second API: under its prefix, then at the root of its own port."""
    url = f"{server.url}/second" if request.param == "prefix" else f"http://127.0.0.1:{server.api_ports[0]}"
    with httpx.Client(base_url=url, headers={"x-api-key": f"Key {server.keys['client']}"}, verify=False) as client:
        yield client


def test_both_apis_serve_the_same_path_names_each_with_its_own_key_header(
    server: LiveServer, second: httpx.Client
) -> None:
    job = server.submit()
    assert server.client("client").get(f"/v1/jobs/{job['id']}").json()["status"] == "queued"
    assert second.get("/jobs/7").json() == {"id": "7", "tenant": "default"}
    bearer = {"authorization": f"Bearer {server.keys['client']}"}
    refused = httpx.get(f"{str(second.base_url).rstrip('/')}/jobs/7", headers=bearer)
    assert (refused.status_code, refused.json()["kind"]) == (401, "MISSING_KEY")
    other_way = httpx.get(f"{server.url}/v1/jobs/{job['id']}", headers=dict(second.headers))
    assert (other_way.status_code, other_way.json()["code"]) == (401, "missing_key")
    wrong = second.get("/jobs/7", headers={"x-api-key": "Key cs_wrong"})
    assert (wrong.status_code, wrong.json()["kind"]) == (401, "INVALID_KEY")


def test_roles_are_checked_for_every_api(server: LiveServer, second: httpx.Client) -> None:
    refused = second.post("/jobs", json={"prompt": "a"}, headers={"x-api-key": f"Key {server.keys['viewer']}"})
    assert (refused.status_code, refused.json()["kind"]) == (403, "FORBIDDEN")


def test_the_root_of_an_api_is_a_route_too(second: httpx.Client) -> None:
    assert second.get("").json() == second.get("/").json() == {"second": True}


def test_a_body_is_json_a_form_or_multipart(second: httpx.Client) -> None:
    expected = {"prompt": "a pier", "size": 2, "tags": ["x", "y"], "file": None, "by": "client"}
    fields: dict[str, Any] = {"prompt": "a pier", "size": 2, "tags": ["x", "y"]}
    assert second.post("/jobs", json=fields).json() == expected
    assert second.post("/jobs", data=fields).json() == expected
    file = ("a.png", b"\x89PNG".replace(b"\x89", b"x") + b"0" * 1_000, "image/png")
    found = second.post("/jobs", data={"prompt": "a pier"}, files={"image": file}).json()
    assert found["file"] == {"name": "a.png", "type": "image/png", "size": 1_004, "first": "xPNG", "rest": 1_000}


def test_a_route_streams_its_response(second: httpx.Client) -> None:
    answer = second.get("/jobs/latest/words")
    assert (answer.text, answer.headers["x-content-type-options"]) == ("one two three", "nosniff")


def test_a_literal_segment_does_not_hide_a_parameter(second: httpx.Client) -> None:
    assert second.get("/jobs/latest/input").json()["id"] == "latest"


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "kind"),
    [
        ("GET", "/nothing", {}, 404, "ROUTE_NOT_FOUND"),
        ("GET", "/jobs/%ff", {}, 404, "ROUTE_NOT_FOUND"),
        ("DELETE", "/jobs", {}, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/jobs", {"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST", "/forms", {"json": {"prompt": "a"}}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST", "/jobs", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "INVALID_JSON"),
        ("POST", "/jobs", {"json": {"size": 1}}, 422, "INVALID_BODY"),
        ("POST", "/jobs", {"data": {"prompt": "a", "size": "many"}}, 422, "INVALID_BODY"),
        ("POST", "/jobs", {"data": {"prompt": ["a", "b"]}}, 422, "INVALID_BODY"),
        ("POST", "/jobs", {"data": {"prompt": "a", "image": "text"}}, 422, "INVALID_BODY"),
        ("POST", "/jobs", {"files": {"prompt": b"a file"}}, 422, "INVALID_BODY"),
        ("GET", "/fail", {}, 500, "INTERNAL_ERROR"),
    ],
)
def test_errors_have_the_format_of_the_api(  # noqa: PLR0917 - fixtures and the case
    server: LiveServer,
    second: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    options: dict[str, Any],
    status: int,
    kind: str,
) -> None:
    reported: list[Exception] = []
    monkeypatch.setattr(server.callsheet.state, "report_error", lambda _, error: reported.append(error))
    answer = second.request(method, path, **options)
    assert (answer.status_code, answer.json()["kind"]) == (status, kind)
    assert set(answer.json()) == {"detail", "kind"}
    assert "secret detail" not in answer.text
    assert len(reported) == (status == 500)


def test_an_error_format_that_fails_falls_back_to_the_native_one(
    server: LiveServer, second: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.callsheet.state, "report_error", lambda *_: None)
    assert second.get("/broken-renderer").json()["code"] == "route_not_found"


def test_paths_outside_the_second_api_have_native_errors(server: LiveServer) -> None:
    for path in ("/v1/nothing", "/nothing", "/secondary"):
        assert server.client().get(path).json()["code"] == "route_not_found"
    port = f"http://127.0.0.1:{server.api_ports[0]}"
    for path in ("/v1/jobs", "/healthz", "/second/jobs/7"):
        assert httpx.get(port + path).json()["kind"] == "ROUTE_NOT_FOUND"


@pytest.mark.parametrize(
    ("options", "status", "kind"),
    [
        ({"data": {"prompt": "a" * 101}}, 413, "FORM_TOO_LARGE"),
        ({"data": {"tags": ["a"] * 5}}, 413, "FORM_TOO_LARGE"),
        ({"files": {"prompt": (None, "a" * 101)}}, 413, "FORM_TOO_LARGE"),
        ({"files": [("tags", (None, "a"))] * 5}, 413, "FORM_TOO_LARGE"),
        ({"files": {"image": ("a", b"0" * 2_001)}}, 413, "FORM_TOO_LARGE"),
        ({"files": {"image": ("a" * 300, b"0")}}, 400, "INVALID_FORM"),
        ({"files": [(f"f{n}", ("a", b"0" * 1_900)) for n in range(3)]}, 413, "BODY_TOO_LARGE"),
        ({"content": b"%zz=\xff", "headers": {"content-type": FORM}}, 400, "INVALID_FORM"),
        ({"content": b"--b\r\n", "headers": {"content-type": MULTIPART}}, 400, "INVALID_FORM"),
        ({"content": b"--b\r\nno", "headers": {"content-type": f"{MULTIPART}; boundary=b"}}, 400, "INVALID_FORM"),
        (
            {"content": b'--b\r\ncontent-disposition: form-data; name="prompt"\r\n\r\ncut off',
             "headers": {"content-type": f"{MULTIPART}; boundary=b"}}, 400, "INVALID_FORM",
        ),
        (
            {"content": b"--b\r\ncontent-disposition: form-data\r\n\r\na\r\n--b--\r\n",
             "headers": {"content-type": f"{MULTIPART}; boundary=b"}}, 400, "INVALID_FORM",
        ),
    ],
)  # fmt: skip
def test_forms_have_limits(second: httpx.Client, options: dict[str, Any], status: int, kind: str) -> None:
    answer = second.post("/jobs", **options)
    assert (answer.status_code, answer.json()["kind"]) == (status, kind), answer.text


def test_each_api_has_its_own_cors_policy(server: LiveServer, second: httpx.Client) -> None:
    allowed = second.get("/jobs/7", headers={"origin": SECOND_ORIGIN})
    assert allowed.headers["access-control-allow-origin"] == SECOND_ORIGIN
    missing = second.get("/nothing", headers={"origin": SECOND_ORIGIN})
    assert missing.headers["access-control-allow-origin"] == SECOND_ORIGIN
    native = second.get("/jobs/7", headers={"origin": "https://native.example"})
    assert "access-control-allow-origin" not in native.headers
    preflight = {"origin": SECOND_ORIGIN, "access-control-request-method": "POST"}
    answer = second.options("/jobs", headers=preflight)
    assert (answer.status_code, "x-api-key" in answer.headers["access-control-allow-headers"]) == (204, True)
    assert server.client().options("/v1/jobs", headers=preflight).status_code == 405


def test_failed_authentication_is_counted_together_for_all_apis(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "callsheet.db", tmp_path, HttpSettings(failed_auth_max=2), apis=[SECOND]) as server:
        url = f"http://127.0.0.1:{server.api_ports[0]}/limited"
        answers = [httpx.post(url, headers={"x-api-key": "Key cs_wrong"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [401, 401, 429]
        assert answers[-1].json()["kind"] == "TOO_MANY_FAILED_AUTH"
        native = server.client(headers={"authorization": "Bearer cs_wrong"}).post("/v1/worker/register", json={})
        assert native.json()["code"] == "too_many_failed_auth"


def test_requests_of_both_ports_are_in_one_set_of_metrics(server: LiveServer, second: httpx.Client) -> None:
    second.get("/jobs/7")
    assert 'route="/second/jobs/{name}"' in server.client("operator").get("/metrics").text


def test_only_documented_apis_are_in_the_openapi_document(server: LiveServer) -> None:
    paths = server.client().get("/openapi.json").json()["paths"]
    assert "/v1/jobs" in paths
    assert not [path for path in paths if path.startswith("/second")]
    with pytest.raises(ValueError, match="cannot be documented"):
        Api("/third", (), SECOND.authenticate, render_detail, documented=True)


def test_a_multipart_file_is_closed_after_the_response(tmp_path: Path) -> None:
    kept: list[UploadedFile] = []

    async def keep(state: Any, request: Request) -> Response:
        _ = state
        kept.append(request.content.image)
        return Response(None, 204)

    api = Api("/keep", (Route("POST", "/", keep, PUBLIC, "Keep", request=SketchForm, body_types=(MULTIPART,)),),
              SECOND.authenticate)  # fmt: skip
    with LiveServer(tmp_path / "callsheet.db", tmp_path, apis=[api]) as server:
        answer = server.client().post("/keep", data={"prompt": "a"}, files={"image": ("a", b"0" * 900_000)})
        assert answer.status_code == 204
        server.client().get("/healthz")
        assert kept[0].file.closed


# -- conflicts


def routes(*paths: str, method: str = "GET") -> tuple[Route, ...]:
    return tuple(Route(method, path, root, PUBLIC, "A route") for path in paths)


@pytest.mark.parametrize(
    "apis",
    [
        [("", ("/a", "/a"))],
        [("", ("/a/{x}", "/a/{y}"))],
        [("/a", ("/b/{x}/c",)), ("/a/b", ("/{y}/c",))],
        [("", ("/v1/jobs",)), ("/v1", ("/jobs",))],
        [("/v1", ("/jobs",)), ("/v1", ("/files",))],
    ],
)
def test_two_routes_for_one_method_and_path_are_refused(apis: list[tuple[str, tuple[str, ...]]]) -> None:
    with pytest.raises(RouteConflictError):
        PathTree([Api(prefix, routes(*paths), SECOND.authenticate) for prefix, paths in apis])


def test_the_refusal_names_both_routes() -> None:
    conflict = r"GET /a/\{y\} \(.*root\) conflicts with GET /a/\{x\} \(.*root\)"
    with pytest.raises(RouteConflictError, match=conflict):
        PathTree([Api("", routes("/a/{x}", "/a/{y}"), SECOND.authenticate)])


def test_routes_of_different_methods_may_name_a_parameter_differently() -> None:
    tree = PathTree([
        Api("", (*routes("/a/{x}"), *routes("/a/{y}", method="PUT"), *routes("/a/{z}/b")), SECOND.authenticate)
    ])  # fmt: skip
    found: dict[str, dict[str, str]] = {}
    for method, path in (("GET", "/a/1"), ("PUT", "/a/1"), ("GET", "/a/1/b")):
        tree.find(method, path, found.setdefault(f"{method} {path}", {}))
    assert list(found.values()) == [{"x": "1"}, {"y": "1"}, {"z": "1"}]


def test_the_longest_prefix_renders_errors() -> None:
    short, long = (Api(prefix, routes("/r"), SECOND.authenticate) for prefix in ("/a", "/a/b"))
    tree = PathTree([Api("", routes("/r"), SECOND.authenticate), short, long])
    assert [tree.api_at(path).prefix for path in ("/a/b/c", "/a/c", "/a/bc", "/c", "/%61/b", "/a/%ff")] == [
        "/a/b", "/a", "/a", "", "/a/b", "/a",
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["v1", "/v1/", "/", "/{x}", "//a"])
def test_a_prefix_is_literal_and_has_no_slash_at_its_end(prefix: str) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        Api(prefix, (), SECOND.authenticate)


def test_a_conflict_with_the_native_api_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Two APIs have the prefix /v1") as raised:
        Callsheet(tmp_path / "callsheet.db", tmp_path, apis=[Api("/v1", (), SECOND.authenticate)])
    assert raised.value.code == "route_conflict"


def test_an_api_without_a_prefix_has_its_own_port_only(tmp_path: Path) -> None:
    api = Api("", routes("/healthz"), SECOND.authenticate, port=0)
    with LiveServer(tmp_path / "callsheet.db", tmp_path, apis=[api]) as server:
        assert server.client().get("/healthz").json() == {"status": "ok"}
        assert httpx.get(f"http://127.0.0.1:{server.api_ports[0]}/healthz").json() == {"second": True}
        server.stop()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{server.api_ports[0]}/healthz")
