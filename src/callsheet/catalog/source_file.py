"""A workflow file as it is read: its table, where each line of it is, and the graphs beside it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from callsheet.catalog.struct_check import Violation
from callsheet.catalog.toml_positions import Path as KeyPath
from callsheet.catalog.toml_positions import find_line, map_lines
from callsheet.comfyui.validate import EXPORT_HINT

_LINE_NUMBER = re.compile(r"line (\d+)")
_BYTE_OFFSET = re.compile(r"(.*) \(byte (\d+)\)")
_SEPARATORS = re.compile(r"[\s,:]*")
_BYTES_MAX = 1024 * 1024
_GRAPH_BYTES_MAX = 4 * 1024 * 1024
"""A graph in a file is indented; what the engine takes of it is counted without that."""
_GRAPH, _OVERRIDES = "graph", "overrides"


class Finding(Struct, frozen=True):
    """Something wrong in a file: where, what, and what to do."""

    file: str
    line: int
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message} {self.hint}"


class SourceFile(NamedTuple):
    """A file that is TOML."""

    file: Path
    table: dict[str, Any]
    lines: dict[KeyPath, int]
    graphs: dict[int, Path]
    """Files with graphs, by the number of their stage from 0."""
    findings: list[Finding]
    """What is wrong with those."""

    def finding(self, violation: Violation) -> Finding:
        """Return a fault with the file and the line where a person would look."""
        key_path = violation.key_path
        if len(key_path) > 3 and key_path[0] == "stages" and key_path[2] == "comfyui":  # noqa: PLR2004 - stages, no, comfyui, part
            if key_path[3] == _GRAPH and key_path[1] in self.graphs:
                return locate_in_graph(self.graphs[int(key_path[1])], violation._replace(key_path=key_path[4:]))
            if key_path[3] == _OVERRIDES and _OVERRIDES in self.table:
                key_path = key_path[3:]
        return Finding(str(self.file), find_line(self.lines, key_path), violation.message, violation.hint)


def read_source_file(file: Path) -> SourceFile | Finding:
    """Read a workflow file with its graphs."""
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
            _embed(source_file, no, stage, spec)
    return source_file


def read_toml(file: Path) -> tuple[dict[str, Any], str] | Finding:
    """Read a file: its table and its text, or what is wrong with it."""
    text = ""
    try:
        if file.stat().st_size > _BYTES_MAX:
            return Finding(
                str(file), 1, "The file is larger than 1 MiB.", "A definition is a page: name the right file."
            )
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        message, _, where = str(error).partition(" (at ")
        offset = _LINE_NUMBER.match(where)
        line = int(offset[1]) if offset else text.rstrip().count("\n") + 1
        return Finding(str(file), line, f"{message}.", "Correct the TOML here.")
    except UnicodeDecodeError:
        return Finding(str(file), 1, "The file is not text in UTF-8.", "Save it as UTF-8.")
    except RecursionError:
        return Finding(str(file), 1, "The file is nested too deeply.", "A definition has a handful of levels.")
    except OSError as error:
        return Finding(str(file), 1, f"The file cannot be read: {error.strerror}.", "Name a file that you may read.")


# -- graphs


def read_graph(file: Path) -> Any | Finding:
    """Read a graph's file, or say what is wrong with it."""
    data = b""
    try:
        if file.stat().st_size > _GRAPH_BYTES_MAX:
            return Finding(str(file), 1, "The file is larger than 4 MiB.", "Take pictures and other data out of it.")
        data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        offset = _BYTE_OFFSET.match(str(error))
        line = data[: int(offset[2])].count(b"\n") + 1 if offset else data.rstrip().count(b"\n") + 1
        return Finding(str(file), line, f"{offset[1] if offset else error}.", f"This is not JSON here. {EXPORT_HINT}")
    except RecursionError:
        return Finding(str(file), 1, "The file is nested too deeply.", EXPORT_HINT)
    except OSError as error:
        return Finding(str(file), 1, f"The file cannot be read: {error.strerror}.", "Name a file that you may read.")


def _embed(source_file: SourceFile, no: int, stage: dict[str, Any], spec: dict[str, Any]) -> None:
    """Put a graph's file in the place of its name; what cannot be read leaves the stage without a graph to judge."""
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
    """Return a file of a folder by its name, or None for one that leads out of it, or nowhere at all."""
    file = folder / name
    try:
        inside = file.resolve(strict=file.is_symlink()).is_relative_to(folder.resolve())
        file.is_file()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a name that no file can have
        return None
    return file if inside and not Path(name).is_absolute() else None


def locate_in_graph(file: Path, violation: Violation) -> Finding:
    """Return a fault of a graph with the line of its node in the graph's file."""
    line = (
        find_node_lines(file.read_text(encoding="utf-8-sig")).get(str(violation.key_path[0]), 1)
        if violation.key_path
        else 1
    )
    return Finding(str(file), line, violation.message, violation.hint)


def find_node_lines(text: str) -> dict[str, int]:
    """Return the line of every node of a graph, which is the JSON text of an object."""
    found: dict[str, int] = {}
    decoded = json.JSONDecoder().raw_decode
    offset, line = text.index("{") + 1, 1
    counted_to = 0
    while (offset := _skip_separators(text, offset)) < len(text) and text[offset] == '"':
        line += text.count("\n", counted_to, offset)
        counted_to = offset
        name, offset = decoded(text, offset)
        found[name] = line
        _, offset = decoded(text, _skip_separators(text, offset))
    return found


def _skip_separators(text: str, offset: int) -> int:
    found = _SEPARATORS.match(text, offset)
    return found.end() if found else offset
