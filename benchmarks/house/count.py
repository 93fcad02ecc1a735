"""Counts files, lines, data classes, functions used once, and imports inside rooms; nothing of the project is run."""

from __future__ import annotations

import ast
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeGuard

from benchmarks.house.source import Module, functions_used_once, imported_modules, read_modules

_SOURCE = ("layers", "icekeeper", "src")
_LARGEST = 5
# A room of rooms: each operation is a room of its own.
_DIVIDED = "operations"


@dataclass(frozen=True, slots=True)
class Room:
    """A room with all folders inside it."""

    name: str
    files: int
    lines: int
    arrows: int
    """Pairs of modules of the room of which one imports the other."""
    floors: int
    """Modules in the longest chain of imports inside the room."""


def count_source(root: Path) -> dict[str, int | float]:
    """The figures of the package."""
    modules = read_modules(root.joinpath(*_SOURCE))
    lengths = [len(module.lines) for module in modules.values()]
    kinds = sum(map(kinds_of_lines, modules.values()), Counter[str]())
    classes = sum(map(_classes_of_data, modules.values()), Counter[str]())
    return {
        "files": len(modules),
        "lines": sum(lengths),
        "lines_of_code": kinds["code"],
        "lines_of_imports": kinds["import"],
        "lines_of_docstrings": kinds["docstring"],
        "lines_of_comments": kinds["comment"],
        "blank_lines": kinds["blank"],
        "median_file": statistics.median(lengths),
        "files_under_40_lines": sum(length < 40 for length in lengths),
        "files_under_60_lines": sum(length < 60 for length in lengths),
        "files_with_one_importer": _with_one_importer(modules),
        "dataclasses": classes["dataclass"],
        "named_tuples": classes["NamedTuple"],
        "typed_dicts": classes["TypedDict"],
        "functions_of_modules": sum(len(module.functions) for module in modules.values()),
        "functions_used_once": len(functions_used_once(modules)),
    }


def kinds_of_lines(module: Module) -> Counter[str]:
    """How many lines are ``code``, ``import``, ``docstring``, ``comment`` and ``blank``; each line is one of them.

    A docstring is every string that stands as a statement, with the blank lines in it.  Lines inside any other string
    are code.
    """
    kinds: dict[int, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            kinds.update(dict.fromkeys(_lines_of(node), "import"))
        elif isinstance(node, ast.Expr) and _is_text(node.value):
            kinds.update(dict.fromkeys(_lines_of(node.value), "docstring"))
        elif isinstance(node, ast.JoinedStr) or _is_text(node):
            for number in _lines_of(node):
                kinds.setdefault(number, "code")
    return Counter(kinds.get(number) or _kind_of(line) for number, line in enumerate(module.lines, start=1))


def _kind_of(line: str) -> str:
    """The kind of a line that no statement above decides."""
    text = line.strip()
    if not text:
        return "blank"
    return "comment" if text.startswith("#") else "code"


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _lines_of(node: ast.stmt | ast.expr) -> Iterable[int]:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _classes_of_data(module: Module) -> Counter[str]:
    """How many classes are ``dataclass``, ``NamedTuple`` and ``TypedDict``."""
    found: Counter[str] = Counter()
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
            named = {ast.unparse(each).rpartition(".")[2] for each in (*decorators, *node.bases)}
            found.update(named & {"dataclass", "NamedTuple", "TypedDict"})
    return found


def _with_one_importer(modules: Mapping[str, Module]) -> int:
    """How many files are imported by one file only, and that stands in the same folder."""
    importers: dict[str, list[Module]] = defaultdict(list)
    for module in modules.values():
        for target in imported_modules(module, modules):
            importers[target].append(module)
    return sum(
        len(found) == 1 and found[0].path.parent == modules[target].path.parent for target, found in importers.items()
    )


def largest_rooms(root: Path) -> list[Room]:
    """The five rooms with the most lines, the largest first.  Modules that stand in no room are left out."""
    modules = read_modules(root.joinpath(*_SOURCE))
    rooms: dict[str, dict[str, Module]] = defaultdict(dict)
    for name, module in modules.items():
        folders = module.path.relative_to(root.joinpath(*_SOURCE)).parent.parts[1:]  # without the package itself
        if folders:
            rooms["/".join(folders[: 2 if folders[0] == _DIVIDED else 1])][name] = module
    found = [_room(name, inside) for name, inside in rooms.items()]
    return sorted(found, key=lambda room: (-room.lines, room.name))[:_LARGEST]


def _room(name: str, inside: Mapping[str, Module]) -> Room:
    graph = {module: imported_modules(each, inside) for module, each in inside.items()}
    floors: dict[str, int] = {}
    for module in TopologicalSorter(graph).static_order():
        floors[module] = 1 + max((floors[target] for target in graph[module]), default=0)
    lines = sum(len(module.lines) for module in inside.values())
    return Room(name, len(inside), lines, sum(map(len, graph.values())), max(floors.values()))


def count_tests(root: Path) -> dict[str, int]:
    """The figures of the tests; a test has its decorators as part of it."""
    modules = read_modules(root / "tests").values()
    tests = [
        node
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return {
        "files": len(modules),
        "lines": sum(len(module.lines) for module in modules),
        "lines_of_support": sum(len(each.lines) for each in modules if each.name.split(".")[0] == "support"),
        "test_functions": len(tests),
        "lines_in_test_functions": sum(
            (node.end_lineno or 0) - min([node.lineno, *(each.lineno for each in node.decorator_list)]) + 1
            for node in tests
        ),
    }


def count_docs(root: Path) -> dict[str, int]:
    """The bytes of the pages."""
    pages = [*(root / "docs").rglob("*.md"), root / "README.md"]
    return {
        "bytes_of_docs_and_readme": sum(page.stat().st_size for page in pages),
        "bytes_of_changelog": (root / "CHANGELOG.md").stat().st_size,
        "bytes_of_contributing": (root / "CONTRIBUTING.md").stat().st_size,
    }
