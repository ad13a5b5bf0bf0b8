"""The metrics page has exactly the metrics of a running server, with their types, labels and meanings."""

import re
from typing import NamedTuple

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.support.processes.live_server import LiveServer
from tests.support.tidiness.source_scan import read_tables
from tests.support.tidiness.tidy import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"
IMPLIED_LABELS = {"le"}
"""Labels that Prometheus adds to the buckets of a histogram."""


class MetricRow(NamedTuple):
    """A metric, as a row of the page or as scraped."""

    type: str
    labels: frozenset[str]
    meaning: str


def scraped_rows(text: str) -> dict[str, MetricRow]:
    """Return the metrics of a scrape by name. A metric without samples has no labels."""
    rows = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        rows[name] = MetricRow(family.type, frozenset(labels - IMPLIED_LABELS), family.documentation)
    return rows


def written_rows() -> dict[str, MetricRow]:
    return {
        name: MetricRow(type_name, frozenset(re.findall(r"`(\w+)`", labels)), meaning)
        for name, (type_name, labels, meaning, *_) in read_tables(PAGE).items()
    }


def differences(scraped: dict[str, MetricRow], written: dict[str, MetricRow]) -> list[str]:
    """Return what to change on the page: rows to add, and rows to delete."""
    wrong = [
        f"add | `{name}` | {row.type} | {', '.join(f'`{label}`' for label in sorted(row.labels))} | {row.meaning} | |"
        for name, row in scraped.items()
        if written.get(name) != row
    ]
    return wrong + [f"delete {name}" for name in written if name not in scraped]


def scrape_with_a_sample_of_each(live_server: LiveServer) -> str:
    """Complete a task, lease another and leave one waiting: only metrics with samples show their labels."""
    stages = [StageSpec(name="draw", kind="sampled", tasks=3)]
    live_server.engine.execute(commands.PutWorkflow(definition=WorkflowDefinition(name="sampled", stages=stages)))
    job = live_server.submit(workflow="sampled")["id"]
    first, second = (
        live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("sampled",)))[0].lease for _ in range(2)
    )
    live_server.engine.execute(commands.Complete(lease=first))
    text = live_server.client("operator").get("/metrics").raise_for_status().text
    live_server.engine.execute(commands.Fail(lease=second, retryable=False))
    assert live_server.engine.reads.job("default", job).finished_at is not None
    return text


def test_the_page_has_every_metric_with_its_type_labels_and_meaning(live_server: LiveServer) -> None:
    scraped = scraped_rows(scrape_with_a_sample_of_each(live_server))
    assert len(scraped) > 15
    assert differences(scraped, written_rows()) == []


def test_a_missing_a_wrong_and_an_unknown_row_are_found() -> None:
    row = MetricRow("gauge", frozenset({"kind"}), "Tasks.")
    assert differences({"new": row}, {}) == ["add | `new` | gauge | `kind` | Tasks. | |"]
    assert differences({"new": row}, {"new": row}) == []
    assert differences({"new": row}, {"new": row._replace(type="counter")}) != []
    assert differences({}, {"old": row}) == ["delete old"]


def test_the_alert_rules_are_valid_and_use_metrics_of_the_page() -> None:
    blocks = re.findall(r"```yaml\n(.+?)```", PAGE.read_text(), re.DOTALL)
    _, rules = (yaml.safe_load(block) for block in blocks)
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    named = set(re.findall(r"callsheet_\w+", " ".join(expressions)))
    assert len(expressions) > 4
    assert named <= set(written_rows())
