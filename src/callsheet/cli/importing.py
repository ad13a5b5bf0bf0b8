"""`callsheet workflows import`: a recipe from a graph that ComfyUI exported."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from callsheet.cli.admin import workflows
from callsheet.cli.given import folder_of
from callsheet.cli.output import AsJson, Failure, as_json, say, table, typed
from callsheet.core.errors import Refusal

if TYPE_CHECKING:
    from callsheet.core.comfy_draft import Draft

_INFO_BYTES_MAX = 64 * 1024 * 1024
_INFO_SECONDS = 30.0
_SHOWN = 40


def register(_app: typer.Typer) -> None:
    """Add the command to those of workflows."""
    workflows.command("import")(import_graph)


def import_graph(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="JSON file from ComfyUI's Workflow > Export (API).")],
    name: Annotated[str | None, typer.Option("--name", help="The workflow's name; by default the file's.")] = None,
    out: Annotated[
        Path, typer.Option("--out", parser=folder_of, metavar="DIR", help="Folder for NAME.toml and NAME.graph.json.")
    ] = Path(),
    object_info: Annotated[
        Path | None, typer.Option("--object-info", help="A ComfyUI's /object_info in a file, for bounds and choices.")
    ] = None,
    server: Annotated[str | None, typer.Option("--server", help="A ComfyUI to ask for it: http://host:8188.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    json: AsJson = False,
) -> None:
    """Make a workflow from a graph that ComfyUI exported.

    Its inputs are those that users would want to set.
    """
    if object_info is not None and server is not None:
        raise typer.BadParameter("Name one: --object-info FILE or --server URL.")
    try:
        tree = _sound(graph)
        info = _asked(server) if server is not None else None if object_info is None else _info_of(object_info)
        made = _made(graph, tree, info, name)
        files = _written(made, out, force=force)
    except (Failure, Refusal) as error:
        failure = error if isinstance(error, Failure) else Failure(str(error), code=error.code)
        failure.for_programs = json
        raise failure from None
    _shown(made.draft, files, as_program=json)


class _Made(NamedTuple):
    """The texts of the two files."""

    name: str
    draft: "Draft"
    toml: str
    graph: bytes


def _sound(file: Path) -> dict[str, Any]:
    """Read a graph; everything that is wrong with it is said."""
    from callsheet.catalog.shapes import Fault  # noqa: PLC0415 - brings the schema library
    from callsheet.catalog.sheets import Finding, graph_of, in_graph  # noqa: PLC0415 - the same
    from callsheet.core.comfy_check import graph_flaws  # noqa: PLC0415 - the same
    from callsheet.core.limits import Limits  # noqa: PLC0415 - the same

    read = graph_of(file)
    found = [read] if isinstance(read, Finding) else []
    if not found:
        found = [in_graph(file, Fault(*flaw)) for flaw in graph_flaws(read, Limits())]
    if found:
        raise Failure("\n".join(map(str, found)), code="invalid_graph")
    return cast("dict[str, Any]", read)


def _made(file: Path, tree: dict[str, Any], info: dict[str, Any] | None, name: str | None) -> _Made:
    import msgspec  # noqa: PLC0415 - only this command needs it

    from callsheet.catalog.drafting import name_of, toml_of  # noqa: PLC0415 - brings the schema library
    from callsheet.core.comfy_draft import draft  # noqa: PLC0415 - the same
    from callsheet.core.limits import Limits  # noqa: PLC0415 - the same
    from callsheet.core.recipe import name_checked  # noqa: PLC0415 - the same

    chosen = name_checked("workflow", name_of(file.stem) if name is None else name, Limits())
    found = draft(tree, info)
    graph = msgspec.json.format(msgspec.json.encode(tree), indent=2)
    return _Made(chosen, found, toml_of(found, file.name, f"{chosen}.graph.json"), graph + b"\n")


def _written(made: _Made, out: Path, *, force: bool) -> tuple[Path, Path]:
    """Write both files, or none."""
    from callsheet import catalog  # noqa: PLC0415 - brings the schema library

    toml, graph = out / f"{made.name}.toml", out / f"{made.name}.graph.json"
    there = [str(file) for file in (toml, graph) if file.exists()]
    if there and not force:
        are = "is" if len(there) == 1 else "are"
        raise Failure(f"{' and '.join(there)} {are} there: choose another --name or --out, or --force.", code="exists")
    try:
        out.mkdir(parents=True, exist_ok=True)
        graph.write_bytes(made.graph)
        toml.write_text(made.toml, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}.") from None
    findings = catalog.check([toml])
    if findings:
        raise Failure("\n".join(map(str, findings)), code="invalid_workflow")
    return toml, graph


# -- what a server says of its nodes


def _info_of(file: Path) -> dict[str, Any]:
    try:
        return _table(file.read_bytes(), str(file))
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}.") from None


def _asked(server: str) -> dict[str, Any]:
    import httpx  # noqa: PLC0415 - only --server needs it

    url = f"{server.rstrip('/')}/object_info"
    said = bytearray()
    try:
        with httpx.stream("GET", url, timeout=_INFO_SECONDS, trust_env=False) as answer:
            if answer.status_code != httpx.codes.OK:
                raise Failure(f"{server} answers {answer.status_code} to /object_info: is it a ComfyUI?")
            for part in answer.iter_bytes():
                said += part
                if len(said) > _INFO_BYTES_MAX:
                    raise Failure(f"{server} says more than {_INFO_BYTES_MAX} bytes of its nodes.")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Failure(f"{server} does not answer: {error}.") from None
    return _table(bytes(said), url)


def _table(data: bytes, source: str) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415 - only this command needs it

    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        raise Failure(f"{source} is not what ComfyUI says under /object_info.") from None


# -- what is told


def _shown(draft: "Draft", files: tuple[Path, Path], *, as_program: bool) -> None:
    toml, graph = files
    if as_program:
        as_json({
            "workflow": str(toml), "graph": str(graph), "inputs": draft.inputs, "output_node": draft.output_node,
            "notes": draft.notes,
        })  # fmt: skip
        return
    table(
        ("INPUT", "SETS", "NODE", "REQUIRED", "IN THE GRAPH"),
        (
            (
                one.name, ", ".join(f"{target.node}.{target.field}" for target in one.targets), one.class_type,
                "yes" if one.required else "random" if one.random else "no", _short(one.value),
            )
            for one in draft.inputs
        ),
        empty="Nothing in this graph looks like something to set: name inputs in the file yourself.",
        least=("NODE", "IN THE GRAPH"),
        text=("SETS", "IN THE GRAPH"),
    )  # fmt: skip
    say("")
    for note in draft.notes:
        say(f"! {note}")
    say(f"Written: {toml} and {graph}.")
    say(f"Now set its price, narrow its input_schema, and run: {typed('workflows check')} {toml}")


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
