"""The machines drawn: one Mermaid diagram and one table each, made from the rows that decide.

`python -m callsheet.core.diagram > docs/states.md` writes the page; a test says when it is out of date.
"""

from collections.abc import Iterator

from callsheet.core.machine import MACHINES, NEW, Machine

_HEAD = """\
# States

Made by `python -m callsheet.core.diagram > docs/states.md` from the tables in `core/machine.py`. Do not edit.

Each legal move is a row: in one of these statuses, when the event happens, these actors may take it to the target.
Everything else is refused with `illegal_transition`, and nothing changes.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(_section(machine) for machine in MACHINES)])


def _section(machine: Machine) -> str:
    return "\n".join([f"## {machine.entity.capitalize()}\n", *_diagram(machine), *_table(machine)])


def _diagram(machine: Machine) -> Iterator[str]:
    yield "```mermaid\nstateDiagram-v2"
    for move in machine.moves:
        source = "[*]" if move.source == NEW else move.source
        yield f"    {source} --> {move.target}: {move.event}"
    for status in machine.statuses:
        if status in machine.terminal:
            yield f"    {status} --> [*]"
    yield "```\n"


def _table(machine: Machine) -> Iterator[str]:
    yield "| event | from | to | by |\n|---|---|---|---|"
    for event in dict.fromkeys(move.event for move in machine.moves):
        moves = [move for move in machine.moves if move.event == event]
        sources = ", ".join(move.source for move in moves)
        actors = ", ".join(dict.fromkeys(actor for move in moves for actor in move.actors))
        yield f"| {event} | {sources} | {machine.target(event)} | {actors} |"
    ends = ", ".join(status for status in machine.statuses if status in machine.terminal)
    yield f"\nTerminal: {ends}.\n"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is this command's result
