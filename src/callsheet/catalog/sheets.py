"""A workflow file as it is read: its table, where each line of it is, and the graphs beside it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from callsheet.catalog.lines import Path as Place
from callsheet.catalog.lines import line_of, lines_of
from callsheet.catalog.shapes import Fault
from callsheet.core.comfy_check import EXPORT

_AT_LINE = re.compile(r"line (\d+)")
_AT_BYTE = re.compile(r"(.*) \(byte (\d+)\)")
_BLANK = re.compile(r"[\s,:]*")
_BYTES_MAX = 1024 * 1024
_GRAPH_BYTES_MAX = 4 * 1024 * 1024
"""A graph in a file is indented; what the engine takes of it is counted without that."""
_GRAPH, _OVERRIDES = "graph", "overrides"


class Finding(Struct, frozen=True):
    """Something wrong in a file: where, what, and what to do."""

    file: str
    line: int
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what} {self.do}"


class Sheet(NamedTuple):
    """A file that is TOML."""

    file: Path
    table: dict[str, Any]
    lines: dict[Place, int]
    graphs: dict[int, Path]
    """Files with graphs, by the number of their stage from 0."""
    findings: list[Finding]
    """What is wrong with those."""

    def finding(self, fault: Fault) -> Finding:
        """Return a fault with the file and the line where a person would look."""
        place = fault.place
        if len(place) > 3 and place[0] == "stages" and place[2] == "comfyui":  # noqa: PLR2004 - stages, no, comfyui, part
            if place[3] == _GRAPH and place[1] in self.graphs:
                return in_graph(self.graphs[int(place[1])], fault._replace(place=place[4:]))
            if place[3] == _OVERRIDES and _OVERRIDES in self.table:
                place = place[3:]
        return Finding(str(self.file), line_of(self.lines, place), fault.what, fault.do)


def sheet_of(file: Path) -> Sheet | Finding:
    """Read a workflow file with its graphs."""
    read = table_of(file)
    if isinstance(read, Finding):
        return read
    table, text = read
    table.setdefault("name", file.stem)
    sheet = Sheet(file, table, lines_of(text), {}, [])
    stages = table.get("stages")
    for no, stage in enumerate(stages if isinstance(stages, list) else ()):
        spec = stage.get("comfyui") if isinstance(stage, dict) else None
        if isinstance(spec, dict) and isinstance(spec.get(_GRAPH), str):
            _embed(sheet, no, stage, spec)
    return sheet


def table_of(file: Path) -> tuple[dict[str, Any], str] | Finding:
    """Read a file: its table and its text, or what is wrong with it."""
    text = ""
    try:
        if file.stat().st_size > _BYTES_MAX:
            return Finding(str(file), 1, "The file is larger than 1 MiB.", "A recipe is a page: name the right file.")
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        at = _AT_LINE.match(where)
        line = int(at[1]) if at else text.rstrip().count("\n") + 1
        return Finding(str(file), line, f"{what}.", "Correct the TOML here.")
    except UnicodeDecodeError:
        return Finding(str(file), 1, "The file is not text in UTF-8.", "Save it as UTF-8.")
    except RecursionError:
        return Finding(str(file), 1, "The file is nested too deeply.", "A recipe has a handful of levels.")
    except OSError as error:
        return Finding(str(file), 1, f"The file cannot be read: {error.strerror}.", "Name a file that you may read.")


# -- graphs


def graph_of(file: Path) -> Any | Finding:
    """Read a graph's file, or say what is wrong with it."""
    data = b""
    try:
        if file.stat().st_size > _GRAPH_BYTES_MAX:
            return Finding(str(file), 1, "The file is larger than 4 MiB.", "Take pictures and other data out of it.")
        data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        at = _AT_BYTE.match(str(error))
        line = data[: int(at[2])].count(b"\n") + 1 if at else data.rstrip().count(b"\n") + 1
        return Finding(str(file), line, f"{at[1] if at else error}.", f"This is not JSON here. {EXPORT}")
    except RecursionError:
        return Finding(str(file), 1, "The file is nested too deeply.", EXPORT)
    except OSError as error:
        return Finding(str(file), 1, f"The file cannot be read: {error.strerror}.", "Name a file that you may read.")


def _embed(sheet: Sheet, no: int, stage: dict[str, Any], spec: dict[str, Any]) -> None:
    """Put a graph's file in the place of its name; what cannot be read leaves the stage without a graph to judge."""
    name = spec[_GRAPH]
    place = ("stages", no, "comfyui", _GRAPH)
    file = _beside(sheet.file.parent, name)
    if file is None:
        what, do = f"The graph {name[:80]!r} is outside the folder of this file.", "Put it beside this file."
        read: Any = sheet.finding(Fault(place, what, do))
    elif not file.is_file():
        what, do = f"There is no file {name!r} beside this one.", "Put the exported graph there."
        read = sheet.finding(Fault(place, what, do))
    else:
        read = graph_of(file)
        sheet.graphs[no] = file
    if isinstance(read, Finding):
        sheet.findings.append(read)
        del stage["comfyui"]
    else:
        spec[_GRAPH] = read


def _beside(folder: Path, name: str) -> Path | None:
    """Return a file of a folder by its name, or None for one that leads out of it, or nowhere at all."""
    file = folder / name
    try:
        inside = file.resolve(strict=file.is_symlink()).is_relative_to(folder.resolve())
        file.is_file()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a name that no file can have
        return None
    return file if inside and not Path(name).is_absolute() else None


def in_graph(file: Path, fault: Fault) -> Finding:
    """Return a fault of a graph with the line of its node in the graph's file."""
    line = node_lines(file.read_text(encoding="utf-8-sig")).get(str(fault.place[0]), 1) if fault.place else 1
    return Finding(str(file), line, fault.what, fault.do)


def node_lines(text: str) -> dict[str, int]:
    """Return the line of every node of a graph, which is the JSON text of an object."""
    found: dict[str, int] = {}
    read = json.JSONDecoder().raw_decode
    at, line = text.index("{") + 1, 1
    counted = 0
    while (at := _after_blank(text, at)) < len(text) and text[at] == '"':
        line += text.count("\n", counted, at)
        counted = at
        name, at = read(text, at)
        found[name] = line
        _, at = read(text, _after_blank(text, at))
    return found


def _after_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at
