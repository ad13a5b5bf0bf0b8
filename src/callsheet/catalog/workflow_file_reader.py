"""Read a workflow file: its table, the line of each key, and the graph files that it names."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from callsheet.catalog.field_violations import Violation
from callsheet.catalog.toml_positions import Path as KeyPath
from callsheet.catalog.toml_positions import find_line, map_lines
from callsheet.comfyui.validate import EXPORT_HINT
from callsheet.core.model.strict_json import DuplicateKeyError, decode_json

_LINE_NUMBER = re.compile(r"line (\d+)")
_BYTE_OFFSET = re.compile(r"(.*) \(byte (\d+)\)")
_SEPARATORS = re.compile(r"[\s,:]*")
_BYTES_MAX = 1024 * 1024
_GRAPH_BYTES_MAX = 4 * 1024 * 1024
"""Larger than the limit of the engine, which counts the graph without indentation."""
_GRAPH, _OVERRIDES = "graph", "overrides"


class Finding(Struct, frozen=True):
    """A problem in a file: where it is, what it is, and what to do."""

    file: str
    line: int
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message} {self.hint}"


class SourceFile(NamedTuple):
    """A workflow file that is valid TOML."""

    file: Path
    table: dict[str, Any]
    lines: dict[KeyPath, int]
    graphs: dict[int, Path]
    """Graph files, by the index of their stage."""
    findings: list[Finding]
    """Problems with the graph files."""

    def finding(self, violation: Violation) -> Finding:
        """Return a violation as a finding, with the file and the line to correct."""
        key_path = violation.key_path
        if len(key_path) > 3 and key_path[0] == "stages" and key_path[2] == "comfyui":  # noqa: PLR2004 - stages, index, comfyui, field
            if key_path[3] == _GRAPH and key_path[1] in self.graphs:
                return locate_in_graph(self.graphs[int(key_path[1])], violation._replace(key_path=key_path[4:]))
            if key_path[3] == _OVERRIDES and _OVERRIDES in self.table:
                key_path = key_path[3:]
        return Finding(str(self.file), find_line(self.lines, key_path), violation.message, violation.hint)


def read_source_file(file: Path) -> SourceFile | Finding:
    """Read a workflow file and its graph files."""
    decoded = read_toml(file)
    if isinstance(decoded, Finding):
        return decoded
    table, text = decoded
    table.setdefault("name", file.stem)
    source_file = SourceFile(file, table, map_lines(text), {}, [])
    stages = table.get("stages")
    for no, stage in enumerate(stages if isinstance(stages, list) else ()):
        spec = stage.get("comfyui") if isinstance(stage, dict) else None
        if isinstance(spec, dict) and isinstance(spec.get(_GRAPH), str):
            _embed_graph(source_file, no, stage, spec)
    return source_file


def read_toml(file: Path) -> tuple[dict[str, Any], str] | Finding:
    """Read a TOML file. Returns its table and its text, or a finding if it cannot be read."""
    text = ""
    try:
        if file.stat().st_size > _BYTES_MAX:
            return Finding(str(file), 1, "The file is larger than 1 MiB.", "Check that it is the right file.")
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        message, _, position = str(error).partition(" (at ")
        line_match = _LINE_NUMBER.match(position)
        line = int(line_match[1]) if line_match else text.rstrip().count("\n") + 1
        return Finding(str(file), line, f"{message}.", "Correct the TOML here.")
    except UnicodeDecodeError:
        return Finding(str(file), 1, "The file is not UTF-8 text.", "Save it as UTF-8.")
    except RecursionError:
        return Finding(str(file), 1, "The file is nested too deeply.", "Use fewer levels of nesting.")
    except OSError as error:
        return Finding(str(file), 1, f"The file cannot be read: {error.strerror}.", "Pass a file that you may read.")


# -- graphs


def read_graph(file: Path) -> Any | Finding:
    """Read a graph file. Returns its JSON, or a finding if it cannot be read."""
    data = b""
    try:
        if file.stat().st_size > _GRAPH_BYTES_MAX:
            return Finding(
                str(file), 1, "The file is larger than 4 MiB.", "Upload images and other data as files instead."
            )
        data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
        return decode_json(data, Any)
    except DuplicateKeyError as error:
        return Finding(str(file), 1, f"{error}.", "Remove one of the two.")
    except msgspec.DecodeError as error:
        offset = _BYTE_OFFSET.match(str(error))
        line = data[: int(offset[2])].count(b"\n") + 1 if offset else data.rstrip().count(b"\n") + 1
        return Finding(str(file), line, f"{offset[1] if offset else error}.", f"Correct the JSON here. {EXPORT_HINT}")
    except RecursionError:
        return Finding(str(file), 1, "The file is nested too deeply.", EXPORT_HINT)
    except OSError as error:
        return Finding(str(file), 1, f"The file cannot be read: {error.strerror}.", "Pass a file that you may read.")


def _embed_graph(source_file: SourceFile, no: int, stage: dict[str, Any], spec: dict[str, Any]) -> None:
    """Replace the name of a graph file by its content. If it cannot be read, remove the graph and add a finding."""
    name = spec[_GRAPH]
    key_path = ("stages", no, "comfyui", _GRAPH)
    file = _file_in_folder(source_file.file.parent, name)
    if file is None:
        message, hint = f"The graph {name[:80]!r} is outside the folder of this file.", "Put it beside this file."
        decoded: Any = source_file.finding(Violation(key_path, message, hint))
    elif not file.is_file():
        message, hint = f"There is no file {name!r} beside this one.", "Put the exported graph there."
        decoded = source_file.finding(Violation(key_path, message, hint))
    else:
        decoded = read_graph(file)
        source_file.graphs[no] = file
    if isinstance(decoded, Finding):
        source_file.findings.append(decoded)
        del stage["comfyui"]
    else:
        spec[_GRAPH] = decoded


def _file_in_folder(folder: Path, name: str) -> Path | None:
    """Return a file in a folder; None if the name leads out of the folder or no file can have it."""
    file = folder / name
    try:
        inside = file.resolve(strict=file.is_symlink()).is_relative_to(folder.resolve())
        file.is_file()
    except (OSError, RuntimeError, ValueError):  # a loop of symbolic links, or an invalid file name
        return None
    return file if inside and not Path(name).is_absolute() else None


def locate_in_graph(file: Path, violation: Violation) -> Finding:
    """Return a violation in a graph as a finding, with the line of its node in the graph file."""
    line = (
        find_node_lines(file.read_text(encoding="utf-8-sig")).get(str(violation.key_path[0]), 1)
        if violation.key_path
        else 1
    )
    return Finding(str(file), line, violation.message, violation.hint)


def find_node_lines(text: str) -> dict[str, int]:
    """Return the line of every node in the JSON text of a graph."""
    lines: dict[str, int] = {}
    decode = json.JSONDecoder().raw_decode
    offset, line = text.index("{") + 1, 1
    counted_to = 0
    while (offset := _skip_separators(text, offset)) < len(text) and text[offset] == '"':
        line += text.count("\n", counted_to, offset)
        counted_to = offset
        name, offset = decode(text, offset)
        lines[name] = line
        _, offset = decode(text, _skip_separators(text, offset))
    return lines


def _skip_separators(text: str, offset: int) -> int:
    match = _SEPARATORS.match(text, offset)
    return match.end() if match else offset
