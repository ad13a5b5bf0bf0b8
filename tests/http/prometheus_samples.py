"""Reads the metrics of a server: samples by name and labels."""

from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes.live_server import LiveServer

Sample = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sample."""


def parse(text: str) -> dict[Sample, float]:
    """Return every sample by its name and labels."""
    families = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def scrape(live_server: LiveServer) -> dict[Sample, float]:
    return parse(live_server.client("operator").get("/metrics").raise_for_status().text)


def sample_key(name: str, **labels: str) -> Sample:
    return f"callsheet_{name}", tuple(sorted(labels.items()))
