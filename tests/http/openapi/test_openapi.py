"""The OpenAPI document is complete, its examples fit its schemas, and the reference page loads no foreign files."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import jsonschema_rs
import pytest

from callsheet.core.model.state_machines import JOB
from callsheet.http.openapi.document_builder import PARAMETER, problems_of
from callsheet.http.openapi.error_codes import CODE_MEANINGS
from callsheet.http.openapi.groups import GROUPS, group_of, group_routes
from callsheet.http.openapi.html_page import ReferencePage
from callsheet.http.openapi.native_document import document
from callsheet.http.openapi.parameter_docs import HEADER_DOCS, PATH_DOCS
from callsheet.http.routes.table import ROUTES
from tests.support.processes.live_server import LiveServer

DOCUMENT = document()
FOREIGN = re.compile(r"(?:src|href|url|action)\s*[=(]\s*[\"']?(?:[a-z]+:)?//")


def validator(schema: dict[str, Any]) -> Any:
    """Compile a schema of the document together with the components."""
    return jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]}, validate_formats=True)


def all_contents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every request and response body of every route, and the shared problems."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            contents = {"body": operation.get("requestBody", {}), **operation["responses"]}
            for name, one in contents.items():
                for media_type, content in one.get("content", {}).items():
                    yield f"{method} {path} {name} {media_type}", content
    for name, one in DOCUMENT["components"]["responses"].items():
        for content in one["content"].values():
            yield name, content


def test_every_json_body_has_an_example_that_fits_its_schema() -> None:
    checked = 0
    for name, content in all_contents():
        examples = [one["value"] for one in content.get("examples", {}).values()]
        examples += [content["example"]] if "example" in content else []
        if "json" in name.rpartition(" ")[2] and "/openapi.json" not in name:
            assert examples, f"{name} has no example: see doc() in callsheet.api"
        for example in examples:
            problems = [
                f"{error.instance_path}: {error.message}" for error in validator(content["schema"]).iter_errors(example)
            ]
            assert problems == [], name
            checked += 1
    assert checked > 200


def test_an_example_that_does_not_fit_its_schema_is_detected() -> None:
    job = validator({"$ref": "#/components/schemas/Job"})
    example = DOCUMENT["paths"]["/v1/jobs/{job_id}"]["get"]["responses"]["200"]["content"]["application/json"][
        "example"
    ]
    assert job.is_valid(example)
    for wrong in ({"status": "resting"}, {"created_at": "yesterday"}, {"progress": "half"}, {"error": 1}):
        assert not job.is_valid(example | wrong), wrong


def example_of(operation: str, *path: str | int) -> Any:
    """Return a value from the example response of an operation."""
    found = next(one for methods in DOCUMENT["paths"].values() for one in methods.values()
                 if one["operationId"] == operation)  # fmt: skip
    good = next(answer for status, answer in found["responses"].items() if status.startswith("2"))
    value = good["content"]["application/json"]["example"]
    for part in path:
        value = value[part]
    return value


def test_the_example_of_a_response_matches_the_example_of_its_request() -> None:
    assert example_of("register_worker", "worker") == "gpu-7"
    assert example_of("get_worker", "worker") == "gpu-7"
    assert example_of("put_workflow", "definition", "name") == "poster"
    assert (example_of("put_tenant", "id"), example_of("put_tenant", "weight")) == ("acme", 2)
    assert example_of("update_job", "labels") == {"campaign": "summer"}
    assert example_of("create_upload", "file", "name") == "note.txt"
    assert example_of("get_job", "labels") == {"campaign": "spring"}  # the shared example is not changed


def test_an_open_run_has_consumed_nothing_and_a_wallet_adds_up() -> None:
    run, wallet = example_of("list_runs", "runs", 0), example_of("get_wallet")
    assert (run["status"], run["consumed"], run["refunded"]) == ("open", 0, 0)
    assert wallet["balance"] + wallet["reserved"] + wallet["consumed"] == wallet["topped_up"]


def test_the_labels_of_a_worker_are_described_as_labels_for_operators() -> None:
    for owner in ("Register", "Worker"):
        meaning = DOCUMENT["components"]["schemas"][owner]["properties"]["labels"]["description"]
        assert ("operators" in meaning, "jobs" in meaning) == (True, False)


def test_routes_are_grouped_by_subject() -> None:
    found = {group.name: {route.name for route in mine} for group, mine in group_routes(ROUTES).items()}
    assert {"create_upload", "put_blob", "finish_upload", "get_file", "delete_file"} <= found["files"]
    assert {"submit_job", "refund_job", "list_outputs", "get_why", "create_quote"} <= found["jobs"]
    assert {"approve_stage", "list_tasks"} <= found["stages and tasks"]
    assert sum(map(len, found.values())) == len(ROUTES)
    assert [tag["name"] for tag in DOCUMENT["tags"]] == list(found)


def test_every_native_route_has_a_group_and_its_own_texts() -> None:
    """The document falls back to the bare names for a plugin's routes, so a missing text would not fail there."""
    names = {f"{route.name}.{name}": name for route in ROUTES for name in PARAMETER.findall(route.path)}
    headers = {name for route in ROUTES for name in (*route.request_headers, *route.response_headers)}
    codes = {code for route in ROUTES for listed in problems_of(route).values() for code in listed}
    assert {group_of(route).name for route in ROUTES} <= {group.name for group in GROUPS}
    assert [full for full, name in names.items() if not {full, name} & set(PATH_DOCS)] == []
    assert (headers - set(HEADER_DOCS), codes - set(CODE_MEANINGS)) == (set(), set())


def test_every_field_and_parameter_has_a_description() -> None:
    undescribed = [
        f"{name}.{field}"
        for name, schema in DOCUMENT["components"]["schemas"].items()
        for field, part in schema.get("properties", {}).items()
        if not part.get("description")
    ]
    undescribed += [
        f"{path}?{parameter['name']}"
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        for parameter in operation["parameters"]
        if "$ref" not in parameter and not parameter["description"]
    ]
    assert undescribed == [], "describe it with doc() in callsheet.api"
    assert all(schema.get("description") for schema in DOCUMENT["components"]["schemas"].values())


def test_every_query_parameter_has_a_valid_example() -> None:
    parameters = [
        (f"{path}?{parameter['name']}", parameter)
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        for parameter in operation["parameters"]
        if parameter.get("in") == "query"
    ]
    assert len(parameters) > 40
    assert [where for where, one in parameters if "example" not in one] == [], "give it an example in callsheet.api"
    assert [where for where, one in parameters if not validator(one["schema"]).is_valid(one["example"])] == []
    by_name = {where: one["schema"] for where, one in parameters}
    assert by_name["/v1/jobs?since"]["format"] == by_name["/v1/jobs?until"]["format"] == "date-time"
    assert set(by_name["/v1/jobs?status"]["enum"]) == set(JOB.statuses)


def test_every_reference_exists() -> None:
    found = set(re.findall(r"'\$ref': '#/components/(\w+)/([^']+)'", repr(DOCUMENT)))
    assert len(found) > 40
    assert [(kind, name) for kind, name in found if name not in DOCUMENT["components"][kind]] == []


def test_operation_ids_are_unique() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)


def test_free_form_json_accepts_every_value() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for owner, field in (("NewJob", "input"), ("Event", "data"), ("Output", "output"), ("AuditEntry", "data")):
        for value in (None, 1, "x", [1], {"x": 1}):
            assert validator(schemas[owner]["properties"][field]).is_valid(value), f"{owner}.{field}"
    for notes in ({"a": {"b": 1}}, {}, None):
        assert validator(schemas["Job"]["properties"]["metadata"]).is_valid(notes)
    assert not validator(schemas["Job"]["properties"]["labels"]).is_valid({"a": 1})


def test_the_document_is_served_without_authentication(live_server: LiveServer) -> None:
    answer = live_server.client().get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == DOCUMENT


# -- the page


class Outline(HTMLParser):
    """The ids, links and inline code of a page."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.inline: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in {"href", "src"} and value]
        self.inline += [name for name, _ in attrs if name == "style" or name.startswith("on")]
        self.inline += [tag] if tag == "style" or (tag == "script" and "src" not in attributes) else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def page(live_server: LiveServer) -> httpx.Response:
    return live_server.client().get("/docs")


def test_the_page_has_every_route_every_schema_and_every_error_code(page: httpx.Response) -> None:
    outline = Outline(page.text)
    assert outline.open == []
    assert {route.name for route in ROUTES} <= set(outline.ids)
    assert {f"object-{name}" for name in DOCUMENT["components"]["schemas"]} <= set(outline.ids)
    assert len(outline.ids) == len(set(outline.ids))
    assert [link for link in outline.links if link.startswith("#") and link[1:] not in outline.ids] == []
    codes = set(re.findall(r"'x-codes': \[([^\]]*)\]", repr(DOCUMENT)))
    named = {code.strip("' ") for line in codes for code in line.split(",")} - {"*"}
    assert len(named) > 60
    assert [code for code in named if f"<code>{code}</code>" not in page.text] == []


def test_the_page_has_no_inline_code_and_loads_nothing_from_elsewhere(
    live_server: LiveServer, page: httpx.Response
) -> None:
    outline = Outline(page.text)
    assert outline.inline == []
    assert FOREIGN.findall(page.text) == []
    loaded = [link for link in outline.links if link.startswith("/docs/")]
    assert sorted(loaded) == ["/docs/reference.css", "/docs/reference.js"]
    for link in loaded:
        text = live_server.client().get(link).raise_for_status().text
        assert FOREIGN.findall(text) == []
        assert "@import" not in text


def test_foreign_links_and_inline_code_are_detected() -> None:
    planted = '<script src="//cdn.example/x.js"></script><p style="x" onclick="y()">a</p><script>z()</script>'
    assert len(FOREIGN.findall(planted + "a{b:url(https://x.example/c)}")) == 2
    assert Outline(planted).inline == ["style", "onclick", "script"]


def test_the_page_has_a_strict_content_security_policy(page: httpx.Response) -> None:
    headers = page.headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "style-src": "'self'", "script-src": "'self'", "img-src": "'self' data:",
        "connect-src": "'self'", "form-action": "'none'", "base-uri": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    assert (headers["content-type"], headers["x-content-type-options"]) == ("text/html; charset=utf-8", "nosniff")
    assert (headers["x-frame-options"], headers["referrer-policy"]) == ("DENY", "no-referrer")
    assert headers.get_list("referrer-policy") == ["no-referrer"]


def test_texts_of_the_document_are_escaped_on_the_page() -> None:
    described = document()
    operation = described["paths"]["/v1/jobs"]["post"]
    operation["summary"] = "<script>alert(1)</script>"
    operation["responses"]["201"]["content"]["application/json"]["example"]["workflow"] = "</code><img src=x>"
    described["components"]["schemas"]["Job"]["properties"]["id"]["description"] = '"><b>`x`'
    outline = Outline(ReferencePage(described).html())
    assert (outline.inline, [link for link in outline.links if link == "x"]) == ([], [])
