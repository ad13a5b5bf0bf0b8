"""The settings file of a server, and the reference page of its settings."""

import re
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import fields

from callsheet.cli import settings_and_workflow_docs_page
from callsheet.cli.output import Failure
from callsheet.cli.server_settings_file import ConfigFile, load_settings
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import BlobSettings, HttpSettings, PluginSettings, Settings
from tests.cli.conftest import invoke_cli
from tests.support.tidiness.tidy import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"


def test_a_file_overrides_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "callsheet.toml"
    file.write_text("[engine]\nreaders = 8\n[limits]\nattempts_max = 5\nkind_running_max = { gpu = 4 }\n"
                    '[blobs]\nurl = "s3://films"\n'
                    '[http]\ncors_origins = ["https://app.example"]\nbody_timeout_seconds = 5\n')  # fmt: skip
    assert load_settings(file) == (
        Settings(
            readers=8, blobs=BlobSettings(url="s3://films"), limits=Limits(attempts_max=5, kind_running_max={"gpu": 4})
        ),
        HttpSettings(cors_origins=("https://app.example",), body_timeout_seconds=5),
    )
    assert load_settings(None) == (Settings(), HttpSettings())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engin]\n", ":1: There is no field 'engin' here. Did you mean 'engine'?"),
        ("[http]\ncors_origin = []\n", ":2: There is no field 'cors_origin' here. Did you mean 'cors_origins'?"),
        ('[http]\n\npage_size_max = "x"\n', ":3: http.page_size_max: expected int, got str. Write a whole number."),
        ('[http]\ncors_origins = "x"\n', ":2: http.cors_origins: expected array, got str."),
        ("[limits]\nattempts_max = true\n", ":2: limits.attempts_max: expected int, got bool."),
        ("[limits]\nkind_running_max = { gpu = -1 }\n", ":2: limits.kind_running_max is -1. Write a number from 0."),
        (
            '[limits]\nprovider_rate_max = { fal = "60 a minute" }\n',
            ":2: limits.provider_rate_max has '60 a minute'. Use a rate such as 60/minute: from 1 to 1000000 per",
        ),
        ("[limits]\nkind_rate_max = { gpu = 60 }\n", ":2: limits.kind_rate_max: expected str, got int."),
        ("[engine]\nlanes = 0\n", ":2: engine.lanes is 0. Write a number from 1."),
        (
            "[http]\nheartbeats_per_second_max = 0.5\n",
            ":2: http.heartbeats_per_second_max is 0.5. Write a number from 1.",
        ),
        ("[engine]\npoll_seconds = nan\n", ":2: engine.poll_seconds is nan"),
        ("[engine.limits]\n", ":1: The limits settings have their own section. Write [limits]."),
        ("[engine.blobs]\n", ":1: The blobs settings have their own section. Write [blobs]."),
        ("[blobs]\norphan_grace_seconds = -1\n", ":2: blobs.orphan_grace_seconds is -1. Write a number from 0."),
        ("engine = 3\n", ":1: engine: expected object, got int."),
        ("[engine\n", ":1: "),
        ("[engine]\npoll_seconds = 0\n", ":2: engine.poll_seconds is 0. Write a number from 0.1."),
        ("[http]\nheartbeat_seconds = 0.0\n", ":2: http.heartbeat_seconds is 0.0. Write a number from 0.1."),
        ("[http]\nwait_seconds_max = 0\n", ":2: http.wait_seconds_max is 0. Write a number from 0.1."),
        ("[limits]\nbatch_commands_max = 0\n", ":2: limits.batch_commands_max is 0. Write a number from 1."),
        (
            '[http]\ncors_origins = [\n  "https://app.example",\n  "*",\n]\n',
            ":4: http.cors_origins: '*' is not an origin: use a URL such as https://app.example.",
        ),
        (
            '[http]\nallowed_hosts = ["https://app.example"]\n',
            ":2: http.allowed_hosts: 'https://app.example' is not a host: write a name such as callsheet.example",
        ),
        (
            '[http]\nproxy_addresses = ["10.0.0.0/33"]\n',
            ":2: http.proxy_addresses: '10.0.0.0/33' is not an IP address or a network: write one such as 10.0.0.1",
        ),
        ('[http]\nworker_verify_url = "server"\n', ":2: http.worker_verify_url is not a URL. Write https://"),
        (
            '[blobs]\n\nurl = "gs://x"\n',
            ":3: blobs.url is not a supported URL. Use file:///folder or s3://bucket/prefix.",
        ),
        ('[blobs]\nurl = "s3://x"\n', ":2: blobs.url has no valid bucket name: 'x'. Use s3://bucket/prefix."),
        (
            '[blobs]\nurl = "s3://films"\nregion = "a b"\n',
            ":3: blobs.region is 'a b'. Use a region name such as eu-central-1.",
        ),
        (
            '[blobs]\nurl = "s3://films"\nendpoint = "http://x:port"\n',
            ":3: blobs.endpoint is not a URL without a path. Use https://host:port.",
        ),
        (
            '[blobs]\nurl = "s3://films"\n[limits]\nfile_bytes_max = 6000000000\n',
            ":4: limits.file_bytes_max is 6000000000. S3 allows at most 5368709120 bytes (5 GiB) per upload.",
        ),
    ],
)
def test_every_error_in_a_file_is_reported_with_its_line_before_anything_starts(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "callsheet.toml"
    file.write_text(text)
    with pytest.raises(Failure) as refused:
        load_settings(file)
    assert str(refused.value).startswith(f"{file}{message}")
    for command in ("up", "serve"):
        done = invoke_cli(command, "--data-dir", tmp_path / "data", "--config", file)
        assert (done.code, done.err) == (1, f"callsheet: {refused.value}\n")
    assert not (tmp_path / "data").exists()


def test_the_page_explains_each_setting_that_may_be_0(tmp_path: Path) -> None:
    file = tmp_path / "callsheet.toml"
    file.write_text(
        "[blobs]\norphan_grace_seconds = 0\n[engine]\nrecord_blocked = false\n[limits]\nactive_jobs_max = 0\n"
    )
    assert load_settings(file)[0].blobs.orphan_grace_seconds == 0
    lines = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    zeros = {cells[0].strip("| `"): cells[3] for cells in lines if cells[2] == "0"}
    assert {"orphan_grace_seconds", "active_jobs_max", "streams_max"} <= zeros.keys()
    assert [name for name, meaning in zeros.items() if not re.search(r"\b0 means\b", meaning)] == []
    assert {cells[0].strip("| `") for cells in lines if cells[2] == "0.1"} >= {"poll_seconds", "heartbeat_seconds"}


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    assert "absent.toml" in invoke_cli("up", "--data-dir", tmp_path / "data", "--config", tmp_path / "absent.toml").err


def test_the_settings_page_is_fresh_and_its_example_is_valid(tmp_path: Path) -> None:
    assert PAGE.read_text() == settings_and_workflow_docs_page.page(), "run: make docs"
    for shape in (Settings, Limits, BlobSettings, HttpSettings, PluginSettings):
        for field in fields(shape):
            assert field.name in {"limits", "blobs", "plugins"} or f"| `{field.name}` |" in PAGE.read_text()
    example = PAGE.read_text().partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "example.toml").write_text(example)
    assert load_settings(tmp_path / "example.toml") != load_settings(None)
    assert set(tomllib.loads(example)) == {field.name for field in fields(ConfigFile)}
