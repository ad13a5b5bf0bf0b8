"""The documentation matches the source: generated pages are fresh, tables are complete, links lead to files."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bench.table import PAGE, RESULTS, Row, replace_figures
from callsheet.core.model import errors
from callsheet.core.model.commands import Fail, Lease, Outcome
from callsheet.core.model.state_diagrams import page
from callsheet.http.openapi import markdown_page
from callsheet.http.openapi.document_builder import problems_of
from callsheet.http.openapi.error_codes import ANY_CODE, CODE_MEANINGS
from callsheet.http.routes.table import ROUTES
from callsheet.http.server.problems import status_of
from callsheet.http.server.route import ROLES
from tests.support.tidiness import source_scan
from tests.support.tidiness.source_scan import SourceScan, read_tables
from tests.support.tidiness.tidy import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
DECISIONS = sorted((DOCS / "adr").glob("[0-9]*.md"))

PLANTED = """
class Burnt(Refusal):
    def __init__(self):
        super().__init__("burnt", "Too hot.")

def check(what, name):
    raise BadInput(f"invalid_{what}", name)

def check_again(what, name):
    check(what, name)

def submit(ws, job):
    check_again("spoon", "x")
    for what, value in (("fork", 1), ("knife", 2)):
        check(what, value)
    raise Conflict("cold" if job else "raw", "Not served.")
    raise NotFound("dish", "x")
    ws.emit(job, "job.salted", "user")
    move_task(ws, job, task, "lease", "worker", {})
    end_attempt(ws, AttemptEnd("lost", "dropped", "text"))
    raise Problem(418, "teapot", "A teapot.")

def refuse(code):
    raise Problem(401, code, "Refused.")

refuse("unsalted")
"""


@pytest.fixture(scope="module")
def code() -> SourceScan:
    return source_scan.source()


def test_the_page_of_states_is_fresh() -> None:
    assert (DOCS / "reference" / "states.md").read_text() == page(), (
        "run: python -m callsheet.core.model.state_diagrams > docs/reference/states.md"
    )


def test_the_page_of_routes_is_fresh_and_has_every_route() -> None:
    written = (DOCS / "reference" / "http.md").read_text()
    assert written == markdown_page.page(), (
        "run: python -m callsheet.http.openapi.markdown_page > docs/reference/http.md"
    )
    assert all(f"### `{route.method} {route.path}`" in written for route in ROUTES)


def test_the_performance_page_has_the_last_measurements() -> None:
    rows = [Row(**row) for row in json.loads(RESULTS.read_text())["rows"]]
    written = PAGE.read_text()
    assert len(rows) > 20
    assert replace_figures(rows, written) == written, "run: make bench"
    assert replace_figures(rows[1:], written) != written


def test_every_error_code_is_documented_with_its_class(code: SourceScan) -> None:
    raised = source_scan.error_codes(code)
    written = {name: cells[0] for name, cells in read_tables(DOCS / "reference" / "errors.md", "Refusals").items()}
    assert len(raised) > 40
    assert written == raised


def test_every_code_of_the_http_server_is_documented_with_its_status(code: SourceScan) -> None:
    refusals = source_scan.error_codes(code)
    returned = {name: status for name, status in source_scan.problem_codes(code).items() if name not in refusals}
    written = {
        name: int(cells[0]) for name, cells in read_tables(DOCS / "reference" / "errors.md", "Over HTTP").items()
    }
    assert len(returned) > 25
    assert written == returned


def test_every_code_of_a_route_is_one_that_the_source_raises_with_that_status(code: SourceScan) -> None:
    statuses = source_scan.problem_codes(code)
    for name, kind in source_scan.error_codes(code).items():
        refusal = getattr(errors, kind).__new__(getattr(errors, kind))
        refusal.code = name
        statuses[name] = status_of(refusal)
    for route in ROUTES:
        listed_codes = [
            (status, one) for status, codes in problems_of(route).items() for one in codes if one != ANY_CODE
        ]
        assert [(status, one) for status, one in listed_codes if statuses.get(one) != status] == [], route.path


def test_the_meanings_of_error_codes_in_the_api_and_on_the_page_are_the_same() -> None:
    written = {name: cells[-1] for name, cells in read_tables(DOCS / "reference" / "errors.md").items()}
    assert len(CODE_MEANINGS) > 60
    assert {name: text for name, text in CODE_MEANINGS.items() if name != ANY_CODE and written.get(name) != text} == {}


def test_every_code_of_an_ended_attempt_or_job_is_documented(code: SourceScan) -> None:
    lease = Lease("jobs", "task", 1, "token")
    known = source_scan.ending_codes(code) | {Fail(lease=lease).code, Outcome("failed").code}
    assert len(known) > 8
    assert set(read_tables(DOCS / "reference" / "errors.md", "How attempts and jobs end")) == known


def test_every_event_type_is_documented(code: SourceScan) -> None:
    emitted = source_scan.event_types(code)
    assert len(emitted) > 25
    assert set(read_tables(DOCS / "reference" / "events.md", "Types")) == emitted


def test_every_role_is_in_the_table_of_roles() -> None:
    table = (DOCS / "guides" / "http-api.md").read_text().partition("### Roles")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == sorted(["role", *ROLES])


def test_every_row_of_a_reference_table_has_a_sentence() -> None:
    for name in ("errors.md", "events.md"):
        for row, cells in read_tables(DOCS / "reference" / name).items():
            assert re.fullmatch(r"[A-Z].*\.", cells[-1]), f"{name}: {row} has no sentence"


def test_planted_codes_and_events_are_found() -> None:
    """The scan follows parameters, loops and conditions; a code that it missed would stay undocumented."""
    planted = SourceScan([PLANTED])
    assert source_scan.error_codes(planted) == {
        "burnt": "Burnt", "invalid_spoon": "BadInput", "invalid_fork": "BadInput", "invalid_knife": "BadInput",
        "cold": "Conflict", "raw": "Conflict", "dish_not_found": "NotFound",
    }  # fmt: skip
    assert source_scan.ending_codes(planted) == {"dropped"}
    assert source_scan.problem_codes(planted) == {"teapot": 418, "unsalted": 401}
    assert {"job.salted", "task.leased"} <= source_scan.event_types(planted)


# -- pages


def broken_links(path: Path, text: str) -> list[str]:
    """Return the links of a page to files that do not exist."""
    targets = [link.partition("#")[0] for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    return [target for target in targets if target and not (path.parent / target).exists()]


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them. A repeated heading gets a number."""
    counts: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def broken_anchors(path: Path, text: str) -> list[str]:
    """Return the links of a page to headings that do not exist."""
    links = [link for link in LINK.findall(FENCE.sub("", text)) if "#" in link and not re.match(r"[a-z]+:", link)]
    return [
        link
        for link in links
        for target, _, anchor in [link.partition("#")]
        if anchor not in anchors((path.parent / target).read_text() if target else text)
    ]


def test_every_linked_heading_exists() -> None:
    broken = {str(path.relative_to(ROOT)): found for path in PAGES if (found := broken_anchors(path, path.read_text()))}
    assert broken == {}


def test_a_planted_dead_anchor_is_found() -> None:
    headings = "# A `b` c: d\n## E\n## E\n```\n# F\n```\n"
    links = "[1](#a-b-c-d) [2](#e-1) [3](#e-2) [4](#f) [5](docs/index.md#missing) [6](docs/index.md#design)"
    assert broken_anchors(ROOT / "README.md", headings + links) == ["#e-2", "#f", "docs/index.md#missing"]


def test_every_linked_file_exists() -> None:
    assert PAGES
    broken = {str(path.relative_to(ROOT)): found for path in PAGES if (found := broken_links(path, path.read_text()))}
    assert broken == {}


def test_a_planted_dead_link_is_found() -> None:
    text = "[a](docs/reference/errors.md) [b](docs/missing.md#part) [c](https://example.org/x) [d](#here)"
    assert broken_links(ROOT / "README.md", text) == ["docs/missing.md"]


def missing_paths(text: str) -> list[str]:
    """Return the paths of the project that a page names in backticks and that do not exist."""
    named = re.findall(r"`((?:src|tests|bench|tools|docs)/[\w./-]+)`", text)
    return [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"])
def test_every_path_in_the_guides_exists(name: str) -> None:
    assert missing_paths((ROOT / name).read_text()) == []


def test_a_planted_missing_path_is_found() -> None:
    assert missing_paths("See `src/callsheet/app.py` and `src/callsheet/missing.py`.") == ["src/callsheet/missing.py"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_decision_is_in_the_index_and_numbered_without_gaps() -> None:
    index = (DOCS / "adr" / "index.md").read_text()
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert LINK.findall(index) == [path.name for path in DECISIONS]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_context_decision_consequences_and_alternatives(path: Path) -> None:
    text = path.read_text().lower()
    assert re.match(r"# \d*", text)
    assert [word for word in ("context", "decision", "consequences", "alternatives") if word not in text] == []
