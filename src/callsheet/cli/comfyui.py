"""`callsheet comfyui`: a ComfyUI server, or Comfy Cloud, as a worker of the fleet."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from callsheet.cli.output import Failure
from callsheet.cli.server import Data
from callsheet.cli.work import (
    CacheBytes,
    CacheFolder,
    Capability,
    Concurrency,
    FleetSecret,
    Grace,
    House,
    Label,
    Lines,
    Name,
    Protect,
    Spot,
    Terms,
    run,
)
from callsheet.folder import DATA

_GIB = 1024**3


class Api(StrEnum):
    """Which wire the server speaks."""

    self_hosted = "self-hosted"
    cloud = "cloud"
    v2 = "v2"


Server = Annotated[
    str | None, typer.Option("--server", help="ComfyUI's address; by default http://127.0.0.1:8188, or the cloud's.")
]
Which = Annotated[Api, typer.Option("--api", help="What the server speaks: its own API, Comfy Cloud's first, or v2.")]
KeyFile = Annotated[
    Path | None, typer.Option("--comfy-key-file", help="File with the key of Comfy Cloud (or COMFY_API_KEY itself).")
]
Kinds = Annotated[str, typer.Option("--kinds", help="Kinds to take, with commas.")]
Limit = Annotated[float, typer.Option("--limit", min=1, help="Seconds that a graph may take.")]


def comfyui(  # noqa: PLR0913, PLR0917 - one per option of the command
    server: Server = None, api: Which = Api.self_hosted, comfy_key_file: KeyFile = None, kinds: Kinds = "comfyui",
    limit: Limit = 3_600, url: House = None, fleet_secret_file: FleetSecret = None, name: Name = None,
    concurrency: Concurrency = 1, cache: CacheFolder = None, cache_bytes: CacheBytes = 20 * _GIB, spot: Spot = None,
    protect: Protect = None, grace: Grace = 0, label: Label = None, capability: Capability = None,
    data: Data = DATA, json: Lines = False,
) -> None:  # fmt: skip
    """Run the graphs of workflows on a ComfyUI server.

    The house is reached over HTTP. It needs no code of yours: a stage with a graph (see `callsheet workflows import`)
    is all that it takes.
    """
    from callsheet.worker.comfyui import KeyNeeded, Pace, comfy_at, comfyui_worker  # noqa: PLC0415 - `--help` goes without it

    try:
        comfy = comfy_at(api.value, server, _key(comfy_key_file))
    except KeyNeeded as error:
        raise typer.BadParameter(f"{error} Name its file with --comfy-key-file, or set COMFY_API_KEY.") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    wanted = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    if not wanted:
        raise typer.BadParameter("--kinds names at least one kind.")
    terms = Terms(
        url=url, fleet_secret_file=fleet_secret_file, name=name, concurrency=concurrency, cache=cache,
        cache_bytes=cache_bytes, spot=spot, protect=protect, grace=grace, label=label, capability=capability,
        data=data, json=json,
    )  # fmt: skip
    run(comfyui_worker(comfy, wanted, Pace(limit_seconds=limit)), terms)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(comfyui)


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("COMFY_API_KEY", "").strip() or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise Failure(f"The key of Comfy Cloud cannot be read from {file}.") from None
