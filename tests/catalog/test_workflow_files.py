"""Workflow files: loading them, and findings with the line, the problem and a hint."""

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from callsheet.catalog import CatalogError, Finding, check, load
from callsheet.catalog.toml_positions import map_lines
from callsheet.core.model.workflow_definition import RetryPolicy, StageSpec, WorkflowDefinition

VALID = """\
# Draws a picture.
price = 3

[input_schema]
type = "object"
required = ["prompt"]

[input_schema.properties.prompt]
type = "string"

[retry]
attempts_max = 5

[[stages]]
name = "draw"
kind = "gpu"
"""
STAGE = '[[stages]]\nname = "draw"\nkind = "gpu"\n'
INVALID = [
    # the text of the file; line, message and hint of the finding
    (f"prise = 3\n{STAGE}", 1, "no field 'prise'", "Did you mean 'price'?"),
    (f"{STAGE}colour = 1\n", 4, "no field 'colour'", "The fields are name, kind, tasks"),
    (f"{STAGE}[retry]\nattempts = 2\n", 5, "no field 'attempts'", "Did you mean 'attempts_max'?"),
    (f"{STAGE}[retry.backoff]\n\nfaktor = 2\n", 6, "no field 'faktor'", "Did you mean 'factor'?"),
    (f"retry = {{ on = 'any', backoff = {{ jiter = 1 }} }}\n{STAGE}", 1, "no field 'jiter'", "'jitter'"),
    (f'\nprice = "3"\n{STAGE}', 2, "price: expected int, got str", "Write a whole number."),
    (f"price = 3.5\n{STAGE}", 1, "price: expected int, got float", "Write a whole number."),
    (f"enabled = 1\n{STAGE}", 1, "enabled: expected bool", "Write true or false."),
    (f"{STAGE}labels = {{ a = 1 }}\n", 4, "stages[0].labels: expected str, got int", "a text in quotes"),
    (f"retry = 3\n{STAGE}", 1, "retry: expected object, got int", "Write a table."),
    ('stages = "draw"\n', 1, "stages: expected array, got str", "Write a list"),
    (f'{STAGE}[retry]\non = "sometimes"\n', 5, "invalid enum value 'sometimes'", '"never", "transient", "any"'),
    (f'{STAGE}[[stages]]\n\nname = "render"\n', 4, "The field 'kind' is missing.", "Add kind = "),
    (f"price = -1\n{STAGE}", 1, "price must be a whole number from 0", "Write a number in this range."),
    (
        f"price = {10**13}\n{STAGE}",
        1,
        "price must be a whole number from 0 to 1000000000000",
        "Write a number in this range.",
    ),
    (f"{STAGE}[retry]\n# often\nattempts_max = 0\n", 6, "retry.attempts_max must be", "Write a number in this range."),
    (
        f"{STAGE}[retry]\nbackoff.factor = 0.5\n",
        5,
        "backoff.factor must be from 1 to 100",
        "Write a number in this range.",
    ),
    (f"{STAGE}[refunds]\nfailed = 101\n", 5, "refunds.failed must be", "Write a number in this range."),
    (f"{STAGE}tasks = 5000\n", 4, "tasks of stage 'draw' must be", "Write a number in this range."),
    ('[[stages]]\nname = "a b"\nkind = "gpu"\n', 2, "The stage 'a b' is not a valid name", "Choose another name."),
    ('[[stages]]\nname = "a"\nkind = ""\n', 3, "The kind '' is not a valid name", "Choose another name."),
    (f'name = "my poster"\n{STAGE}', 1, "The workflow 'my poster' is not a valid name", "or rename the file"),
    ("price = 1\n", 1, "has no stages", "Add a [[stages]] table, or inline = true."),
    (f'{STAGE}[input_schema]\ntype = "objct"\n', 5, 'is not valid: "objct"', "Use array, boolean"),
    (f'rate_max = "60"\n{STAGE}', 1, "rate_max is '60', which is not a rate.", "Without it there is no limit."),
    (f'{STAGE}[[stages]]\nkind = "cpu"\n\nname = "draw"\n', 7, "Two stages have the name 'draw'.", "another name."),
    (f"{STAGE}[input_schema.properties.x]\nminimum = 'low'\n", 5, "is not valid", "Correct the schema here"),
    (f'{STAGE}[input_schema]\n"$ref" = "#/nowhere"\n', 4, "'/nowhere' does not exist", "References to other documents"),
    (f'{STAGE}[input_schema]\npattern = "("\n', 5, 'is not a "regex"', "Correct the schema here"),
    (f"{STAGE}[input_schema]\ndefault = 2026-01-31\n", 5, "is a date, which JSON does not have", "Put it in quotes."),
    (f"{STAGE}inputs = [\n  1,\n  inf,\n]\n", 6, "is inf, which JSON does not have", "Write a number."),
    ("price = 1\nstages = [\n", 2, "Invalid value", "Correct the TOML here."),
    (f"{STAGE}price = = 3\n", 4, "Invalid value", "Correct the TOML here."),
    (f"price = 1\nprice = 2\n{STAGE}", 2, "Cannot overwrite", "Correct the TOML here."),
    (f"a = {'[' * 5_000}", 1, "nested too deeply", "fewer levels of nesting"),
]


def write_files(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


def test_a_folder_is_loaded_and_a_workflow_is_named_after_its_file_by_default(tmp_path: Path) -> None:
    folder = write_files(tmp_path, sketch=VALID, other=f'name = "clip"\n{STAGE}')
    (tmp_path / "notes.txt").write_text("not a workflow")
    clip, sketch = load(folder)
    assert clip == WorkflowDefinition(name="clip", stages=[StageSpec(name="draw", kind="gpu")])
    assert (sketch.name, sketch.price, sketch.retry) == ("sketch", 3, RetryPolicy(attempts_max=5))
    assert check([folder]) == []


@pytest.mark.parametrize(("text", "line", "message", "hint"), INVALID)
def test_a_problem_is_reported_with_its_line_and_a_hint(
    text: str, line: int, message: str, hint: str, tmp_path: Path
) -> None:
    file = write_files(tmp_path, poster=text) / "poster.toml"
    (finding,) = check([file])
    assert (finding.file, finding.line) == (str(file), line)
    assert message in finding.message
    assert hint in finding.hint
    assert str(finding) == f"{file}:{line}: {finding.message} {finding.hint}"
    with pytest.raises(CatalogError) as refused:
        load(tmp_path)
    assert refused.value.findings == [finding]


def test_all_problems_of_a_file_are_reported_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = 'prise = 1\nprice = "x"\n[[stages]]\nname = 1\nkind = "gpu"\n[[stages]]\nname = "b"\n'
    found = check([write_files(tmp_path, poster=text) / "poster.toml"])
    assert [finding.line for finding in found] == [1, 2, 4, 6]
    text = f'price = -1\nname = "a b"\nlease_seconds = 0\n{STAGE}[input_schema]\ntype = 3\n'
    found = check([write_files(tmp_path, poster=text) / "poster.toml"])
    assert [finding.line for finding in found] == [1, 2, 3, 8]
    text = 'prise = 3\nlease_seconds = 0\n[[stages]]\nname = "a b"\nkind = "gpu"\ntasks = "x"\ninputs = [inf]\n'
    found = check([write_files(tmp_path, poster=f"{text}[input_schema]\ntype = 3\n") / "poster.toml"])
    assert [finding.line for finding in found] == [1, 2, 4, 6, 7, 9]  # types, names and values together


def test_all_problems_of_a_schema_and_a_repeated_stage_name_are_reported(tmp_path: Path) -> None:
    schema = (
        '[input_schema]\ntype = "objekt"\nrequired = "prompt"\n[input_schema.properties]\na = { minimum = "low" }\n'
    )
    for declaration in ("", '"$schema" = "http://json-schema.org/draft-07/schema#"\n'):
        text = f"price = -1\n{STAGE}{STAGE}{schema.replace('type', f'{declaration}type', 1)}"
        found = check([write_files(tmp_path, poster=text) / "poster.toml"])
        more = len(declaration.splitlines())
        assert [finding.line for finding in found] == [1, 6, 9 + more, 10 + more, 12 + more]
        assert [finding.message.count("'poster' is not valid: ") for finding in found] == [0, 0, 1, 1, 1]


def test_the_advice_of_a_finding_is_in_its_hint(tmp_path: Path) -> None:
    (finding,) = check([write_files(tmp_path, poster=f'rate_max = "often"\n{STAGE}') / "poster.toml"])
    assert (finding.message.count("Write"), "60/minute" in finding.hint) == (0, True)


def test_a_name_used_by_two_files_is_reported_in_the_second(tmp_path: Path) -> None:
    write_files(tmp_path, alpha=STAGE, beta=f'\nname = "alpha"\n{STAGE}')
    (finding,) = check([tmp_path])
    assert (Path(finding.file).name, finding.line) == ("beta.toml", 2)
    assert "'alpha' is also in" in finding.message
    assert check([tmp_path / "alpha.toml", tmp_path / "alpha.toml"]) == []


def test_missing_empty_and_unreadable_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "large.toml").write_text("#" * (1024 * 1024 + 1))
    paths = [tmp_path / name for name in ("empty", "bytes.toml", "large.toml", "absent.toml")]
    assert [(Path(one.file).name, one.line, one.message) for one in check(paths)] == [
        ("empty", 1, "There is no workflow in this folder."),
        ("bytes.toml", 1, "The file is not UTF-8 text."),
        ("large.toml", 1, "The file is larger than 1 MiB."),
        ("absent.toml", 1, "There is no such file."),
    ]
    assert isinstance(check(paths)[0], Finding)


def test_the_line_of_every_value_is_found_in_all_toml_syntax() -> None:
    text = '''\
a = 1 # a comment with = and [
"b.c" = "#"
d.e = """
one
""""
f = [
  1, # one
  { g = '],}', h = [2,
    3] },
]
[ i . "j" ]
k = \'\'\'
x\'\'\'
[[l]]
m = 1
[l.n]
o = 2
[[l]]
m = {p = 1}
[l.n]
o = 3
'''
    lines = map_lines(text)
    assert lines == {
        (): 1, ("a",): 1, ("b.c",): 2, ("d",): 3, ("d", "e"): 3, ("f",): 6, ("f", 0): 7, ("f", 1): 8,
        ("f", 1, "g"): 8, ("f", 1, "h"): 8, ("f", 1, "h", 0): 8, ("f", 1, "h", 1): 9, ("i",): 11, ("i", "j"): 11,
        ("i", "j", "k"): 12, ("l",): 14, ("l", 0): 14, ("l", 0, "m"): 15, ("l", 0, "n"): 16, ("l", 0, "n", "o"): 17,
        ("l", 1): 18, ("l", 1, "m"): 19, ("l", 1, "m", "p"): 19,
        ("l", 1, "n"): 20, ("l", 1, "n", "o"): 21,
    }  # fmt: skip
    assert key_paths(tomllib.loads(text), ()) == set(lines)


def key_paths(value: Any, path: tuple[str | int, ...]) -> set[tuple[str | int, ...]]:
    """Return the path of every value of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path}.union(*(key_paths(one, (*path, name)) for name, one in inner))


def random_value(rng: random.Random, depth: int) -> str:
    """Return a random TOML value."""
    kind = rng.randrange(6 if depth else 4)
    if kind == 4:
        return "[" + ",\n ".join(random_value(rng, depth - 1) for _ in range(rng.randrange(4))) + "]"
    if kind == 5:
        return "{ " + ", ".join(f"k{no} = {random_value(rng, depth - 1)}" for no in range(rng.randrange(4))) + " }"
    return ("7", '"a, ] } \\" # ="', "'''\nx ' ]\n'''", "2026-01-31T00:00:00Z")[kind]


@pytest.mark.parametrize("seed", range(30))
def test_every_value_of_a_random_document_has_a_line(seed: int) -> None:
    rng = random.Random(seed)
    lines = []
    for no in range(4):
        lines += [f"[[list]]  # {no}" if rng.random() < 0.5 else f"[table{no}.inner]"]
        lines += [f"key{key} = {random_value(rng, 3)}" for key in range(rng.randrange(4))]
    text = "\n".join(lines)
    found = map_lines(text)
    assert set(found) == key_paths(tomllib.loads(text), ())
    split = text.split("\n")
    for path, line in found.items():
        if path and isinstance(path[-1], str) and path[-1].startswith("k"):
            assert path[-1] in split[line - 1]
