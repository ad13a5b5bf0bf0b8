"""`callsheet comfyui`: a ComfyUI server, or Comfy Cloud, as a worker of the fleet."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from callsheet.cli.commands.fleet.worker import (
    CacheBytes,
    CacheDirectory,
    Capability,
    CommandOptions,
    Concurrency,
    FleetSecretFile,
    Grace,
    InterruptionSources,
    JsonLines,
    Label,
    Name,
    ProtectCommand,
    ServerUrl,
    run_worker,
)
from callsheet.cli.connection import Data
from callsheet.cli.output import Failure
from callsheet.data_folder import DEFAULT_DATA_FOLDER

_GIB = 1024**3


class Api(StrEnum):
    """The API of the ComfyUI server."""

    self_hosted = "self-hosted"
    cloud = "cloud"
    v2 = "v2"


ComfyUrl = Annotated[
    str | None,
    typer.Option("--comfyui-url", help="URL of ComfyUI. Default: http://127.0.0.1:8188, or Comfy Cloud."),
]
ApiChoice = Annotated[
    Api, typer.Option("--api", help="API of the server: ComfyUI's own, or Comfy Cloud's version 1 or 2.")
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option("--comfy-api-key-file", help="File with the Comfy Cloud API key (or set COMFY_API_KEY)."),
]
Kinds = Annotated[str, typer.Option("--kinds", help="Kinds to run, comma-separated.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Maximum run time of a graph in seconds.")]


def comfyui(  # noqa: PLR0913, PLR0917 - one per option of the command
    server: ComfyUrl = None, api: ApiChoice = Api.self_hosted, comfy_api_key_file: ApiKeyFile = None,
    kinds: Kinds = "comfyui",
    timeout: Timeout = 3_600, url: ServerUrl = None, fleet_secret_file: FleetSecretFile = None, name: Name = None,
    concurrency: Concurrency = 1, cache: CacheDirectory = None, cache_bytes: CacheBytes = 20 * _GIB,
    spot: InterruptionSources = None,
    protect: ProtectCommand = None, grace: Grace = 0, label: Label = None, capability: Capability = None,
    data: Data = DEFAULT_DATA_FOLDER, json: JsonLines = False,
) -> None:  # fmt: skip
    """Run the graphs of workflows on a ComfyUI server.

    The worker reaches the Callsheet server over HTTP. It needs no code: it runs every stage that has a graph (see
    `callsheet workflows import`).
    """
    from callsheet.worker.comfyui import MissingApiKeyError, Timeouts, comfyui_worker, create_comfy_backend  # noqa: PLC0415 - not needed for --help

    try:
        comfy = create_comfy_backend(api.value, server, _read_api_key(comfy_api_key_file))
    except MissingApiKeyError as error:
        raise typer.BadParameter(f"{error} Pass --comfy-api-key-file, or set COMFY_API_KEY.") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    kind_list = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    if not kind_list:
        raise typer.BadParameter("--kinds is empty. Name at least one kind.")
    options = CommandOptions(
        url=url, fleet_secret_file=fleet_secret_file, name=name, concurrency=concurrency, cache=cache,
        cache_bytes=cache_bytes, spot=spot, protect=protect, grace=grace, label=label, capability=capability,
        data=data, json=json,
    )  # fmt: skip
    run_worker(lambda: comfyui_worker(comfy, kind_list, Timeouts(prompt_timeout_seconds=timeout)), options)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(comfyui)


def _read_api_key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("COMFY_API_KEY", "").strip() or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise Failure(f"Cannot read the Comfy Cloud API key from {file}.") from None
