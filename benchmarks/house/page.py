"""The figures as one column of the table in ``docs/house.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.house.calls import CalledCommand
from benchmarks.house.cold import STARTS, Start
from benchmarks.house.count import Room

GOALS: Mapping[str, str] = {
    "files": "≤ 270",
    "lines": "≤ 57,000",
    "dataclasses, NamedTuples and TypedDicts": "≤ 310",
    "lines of tests": "≤ 70,000",
    "bytes of docs/ and README": "≤ 280,000",
    "`compact`: files": "≤ 90",
    "`compact`: frames": "≤ 36",
    **{f"{name}: least ms": "not slower by 5 %" for name in STARTS if name != "empty program"},
}
_HEAD = "| figure | goal |"


def count_rows(
    source: Mapping[str, int | float], tests: Mapping[str, int], docs: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """What was counted without running anything."""
    kinds = ("dataclasses", "named_tuples", "typed_dicts")
    yield "files", _number(source["files"])
    yield "lines", _number(source["lines"])
    for kind in ("code", "imports", "docstrings", "comments"):
        yield f"lines of {kind}", _number(source[f"lines_of_{kind}"])
    yield "blank lines", _number(source["blank_lines"])
    yield "median file, lines", _number(source["median_file"])
    yield "files under 40 lines", _number(source["files_under_40_lines"])
    yield "files under 60 lines", _number(source["files_under_60_lines"])
    yield "files with one importer, in the same folder", _number(source["files_with_one_importer"])
    yield "dataclasses, NamedTuples and TypedDicts", _number(sum(source[kind] for kind in kinds))
    yield "each of these", ", ".join(_number(source[kind]) for kind in kinds)
    yield "functions of modules", _number(source["functions_of_modules"])
    yield "functions used once", _number(source["functions_used_once"])
    yield "files of tests", _number(tests["files"])
    yield "lines of tests", _number(tests["lines"])
    yield "lines of `tests/support/`", _number(tests["lines_of_support"])
    yield "lines inside test functions", _number(tests["lines_in_test_functions"])
    yield "test functions", _number(tests["test_functions"])
    yield "bytes of docs/ and README", _number(docs["bytes_of_docs_and_readme"])
    yield "bytes of CHANGELOG", _number(docs["bytes_of_changelog"])
    yield "bytes of CONTRIBUTING", _number(docs["bytes_of_contributing"])


def room_rows(rooms: Sequence[Room]) -> Iterator[tuple[str, str]]:
    """The largest rooms, by rank: their names change."""
    for rank, room in enumerate(rooms, start=1):
        yield f"room {rank}: arrows, floors", f"`{room.name}`: {room.arrows}, {room.floors}"


def call_rows(name: str, called: CalledCommand) -> Iterator[tuple[str, str]]:
    """What one command called."""
    yield f"`{name}`: files", _number(called.files)
    yield f"`{name}`: frames", _number(called.depth)
    if called.is_planned:
        yield f"`{name}`: files that get the policy before the plan", _number(called.with_policy)
        yield f"`{name}`: files that get the catalog before the plan", _number(called.with_catalog)


def start_rows(starts: Mapping[str, Start]) -> Iterator[tuple[str, str]]:
    """What fresh interpreters took."""
    for name, start in starts.items():
        yield f"{name}: median ms", _number(round(start.median_ms))
        yield f"{name}: least ms", _number(round(start.least_ms))
        yield f"{name}: modules", _number(start.modules)


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Columns by their titles as a Markdown table; a cell is empty where a column does not have the figure."""
    lines = [f"{_HEAD} {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for label in dict.fromkeys(label for rows in columns.values() for label in rows):
        cells = [label, GOALS.get(label, ""), *(rows.get(label, "") for rows in columns.values())]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def add_column(page: Path, title: str, rows: Mapping[str, str]) -> None:
    """Write figures into the column of this title in the page's table, or into a new one at the right.

    Figures that are not among ``rows`` stay as they are.

    Raises:
        ValueError: the page has no such table.
    """
    lines = page.read_text().splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith(_HEAD)), None)
    if first is None:
        raise ValueError(f"{page} has no table that begins with {_HEAD}")
    last = next((number for number in range(first, len(lines)) if not lines[number].startswith("|")), len(lines))
    head, _, *body = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[first:last])
    columns = {name: {row[0]: row[at] for row in body} for at, name in enumerate(head) if at >= 2}
    columns[title] = columns.get(title, {}) | dict(rows)
    page.write_text("\n".join([*lines[:first], table(columns), *lines[last:]]) + "\n")


def _number(value: float) -> str:
    return f"{value:,}"
