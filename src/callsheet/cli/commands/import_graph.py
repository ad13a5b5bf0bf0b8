"""`callsheet workflows import`: create a workflow file from a graph that ComfyUI exported."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from callsheet.cli.commands.workflows import workflows
from callsheet.cli.output import AsJson, Failure, as_json, print_line, shell_command, table
from callsheet.cli.value_parsers import parse_directory
from callsheet.core.model.errors import Refusal

if TYPE_CHECKING:
    from callsheet.comfyui.draft import WorkflowDraft

_OBJECT_INFO_BYTES_MAX = 64 * 1024 * 1024
_OBJECT_INFO_TIMEOUT_SECONDS = 30.0
_VALUE_CHARS_MAX = 40


def register(_app: typer.Typer) -> None:
    """Add the command to the group `workflows`."""
    workflows.command("import")(import_graph)


def import_graph(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="JSON file from ComfyUI's Workflow > Export (API).")],
    name: Annotated[str | None, typer.Option("--name", help="Workflow name. Default: the file's name.")] = None,
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir", parser=parse_directory, metavar="DIR", help="Folder for NAME.toml and NAME.graph.json."
        ),
    ] = Path(),
    object_info: Annotated[
        Path | None,
        typer.Option("--object-info", help="File with ComfyUI's /object_info response, for bounds and choices."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--comfyui-url", help="ComfyUI server to fetch /object_info from, such as http://host:8188."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: AsJson = False,
) -> None:
    """Create a workflow file from a graph that ComfyUI exported.

    Its inputs are the fields that users usually set, such as prompt and seed.
    """
    if object_info is not None and server is not None:
        raise typer.BadParameter("Pass only one of --object-info and --comfyui-url.")
    try:
        graph_data = _read_graph(graph)
        info = (
            _fetch_object_info(server)
            if server is not None
            else None
            if object_info is None
            else _read_object_info(object_info)
        )
        imported = _build(graph, graph_data, info, name)
        files = _write_files(imported, output_dir, force=force)
    except (Failure, Refusal) as error:
        failure = error if isinstance(error, Failure) else Failure(str(error), code=error.code)
        failure.json_output = json
        raise failure from None
    _print_result(imported.draft, files, as_json_document=json)


class _ImportedWorkflow(NamedTuple):
    """The name and the contents of the two files."""

    name: str
    draft: "WorkflowDraft"
    toml: str
    graph: bytes


def _read_graph(file: Path) -> dict[str, Any]:
    """Read a graph. A failure lists every finding."""
    from callsheet.catalog.field_violations import Violation  # noqa: PLC0415 - slow: imports the schema library
    from callsheet.catalog.workflow_file_reader import Finding, locate_in_graph, read_graph  # noqa: PLC0415 - slow
    from callsheet.comfyui.validate import find_graph_issues  # noqa: PLC0415 - slow
    from callsheet.core.policy.engine_limits import Limits  # noqa: PLC0415 - slow

    graph = read_graph(file)
    findings = [graph] if isinstance(graph, Finding) else []
    if not findings:
        findings = [locate_in_graph(file, Violation(*issue)) for issue in find_graph_issues(graph, Limits())]
    if findings:
        raise Failure("\n".join(map(str, findings)), code="invalid_graph")
    return cast("dict[str, Any]", graph)


def _build(file: Path, graph_data: dict[str, Any], info: dict[str, Any] | None, name: str | None) -> _ImportedWorkflow:
    import msgspec  # noqa: PLC0415 - only this command needs it

    from callsheet.catalog.toml_writer import render_toml, workflow_name  # noqa: PLC0415 - slow: imports the schema library
    from callsheet.comfyui.draft import draft as draft_workflow  # noqa: PLC0415 - slow
    from callsheet.core.model.workflow_definition import check_name  # noqa: PLC0415 - slow
    from callsheet.core.policy.engine_limits import Limits  # noqa: PLC0415 - slow

    checked_name = check_name("workflow", workflow_name(file.stem) if name is None else name, Limits())
    draft = draft_workflow(graph_data, info)
    graph = msgspec.json.format(msgspec.json.encode(graph_data), indent=2)
    return _ImportedWorkflow(
        checked_name, draft, render_toml(draft, file.name, f"{checked_name}.graph.json"), graph + b"\n"
    )


def _write_files(imported: _ImportedWorkflow, output_dir: Path, *, force: bool) -> tuple[Path, Path]:
    """Write both files. Fails before writing if one exists and `force` is false."""
    from callsheet import catalog  # noqa: PLC0415 - slow: imports the schema library

    toml, graph = output_dir / f"{imported.name}.toml", output_dir / f"{imported.name}.graph.json"
    existing = [str(file) for file in (toml, graph) if file.exists()]
    if existing and not force:
        verb = "exists" if len(existing) == 1 else "exist"
        raise Failure(
            f"{' and '.join(existing)} already {verb}. Choose another --name or --output-dir, or pass --force.",
            code="file_exists",
        )
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        graph.write_bytes(imported.graph)
        toml.write_text(imported.toml, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}.") from None
    findings = catalog.check([toml])
    if findings:
        raise Failure("\n".join(map(str, findings)), code="invalid_workflow")
    return toml, graph


# -- node definitions of a ComfyUI server


def _read_object_info(file: Path) -> dict[str, Any]:
    try:
        return _parse_object_info(file.read_bytes(), str(file))
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}.") from None


def _fetch_object_info(server: str) -> dict[str, Any]:
    import httpx  # noqa: PLC0415 - only --comfyui-url needs it

    url = f"{server.rstrip('/')}/object_info"
    body = bytearray()
    try:
        with httpx.stream("GET", url, timeout=_OBJECT_INFO_TIMEOUT_SECONDS, trust_env=False) as response:
            if response.status_code != httpx.codes.OK:
                raise Failure(
                    f"{server} responded with {response.status_code} to /object_info. Pass the URL of a ComfyUI server."
                )
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _OBJECT_INFO_BYTES_MAX:
                    raise Failure(f"The /object_info of {server} has more than {_OBJECT_INFO_BYTES_MAX} bytes.")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Failure(f"{server} does not respond: {error}. Check --comfyui-url.") from None
    return _parse_object_info(bytes(body), url)


def _parse_object_info(data: bytes, source: str) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415 - only this command needs it

    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        raise Failure(f"{source} is not a ComfyUI /object_info response.") from None


# -- output


def _print_result(draft: "WorkflowDraft", files: tuple[Path, Path], *, as_json_document: bool) -> None:
    toml, graph = files
    if as_json_document:
        as_json({
            "workflow": str(toml), "graph": str(graph), "inputs": draft.inputs, "output_node": draft.output_node,
            "notes": draft.notes,
        })  # fmt: skip
        return
    table(
        ("INPUT", "SETS", "NODE", "REQUIRED", "IN THE GRAPH"),
        (
            (
                item.name, ", ".join(f"{target.node}.{target.field}" for target in item.targets), item.class_type,
                "yes" if item.required else "random" if item.random else "no", _truncate(item.value),
            )
            for item in draft.inputs
        ),
        empty="Found no inputs in this graph. Add them to the file yourself.",
        droppable=("NODE", "IN THE GRAPH"),
        wrappable=("SETS", "IN THE GRAPH"),
    )  # fmt: skip
    print_line("")
    for note in draft.notes:
        print_line(f"! {note}")
    print_line(f"Written: {toml} and {graph}.")
    print_line(f"Now set its price, narrow its input_schema, and run: {shell_command('workflows check')} {toml}")


def _truncate(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 1]}…"
