"""The shape of the house: imports point downwards, rooms know what is their business only, rules are pure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter

import pytest

from support.house_plan import PURE, ROOMS, SIDE_EFFECTS, UNKNOWN_TO
from support.source_tree import MODULES, ROOT, imported, is_within, own_imports, relative, room

# Each room that has rooms inside.
HOUSES = sorted(
    {
        name.removeprefix("icekeeper.").rpartition(".")[0]
        for name, path in MODULES.items()
        if path.name == "__init__.py" and name.count(".") >= 2
    }
)


def forbidden_imports(importer: str, forbidden: Collection[str]) -> set[str]:
    """What a room or module imports of a list."""
    assert importer in MODULES
    return {
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if is_within(name, importer)
        for target in [*own_imports(path), *(module for module, _ in imported(path))]
        if any(is_within(target, package) for package in forbidden)
    }


def test_every_room_has_its_place() -> None:
    assert sorted(ROOMS) == sorted({room(name) for name in MODULES if name != "icekeeper"})


def test_the_docs_list_every_room() -> None:
    """The table of rooms is written from the plan and the docstrings of the rooms."""
    page = ROOT / "docs" / "architecture.md"
    script = ROOT / "docs" / "generate_rooms.py"
    done = subprocess.run([sys.executable, str(script), "--print"], capture_output=True, text=True, check=True)
    assert done.stdout == page.read_text(), "run docs/generate_rooms.py"


def test_imports_point_downwards() -> None:
    level = {name: number for number, name in enumerate(ROOMS)}
    upwards = [
        f"{relative(path)} imports {target}"
        for name, path in MODULES.items()
        if name != "icekeeper"
        for target in own_imports(path)
        if room(target) != room(name) and level[room(target)] >= level[room(name)]
    ]
    assert upwards == []


def children(house: str) -> dict[str, set[str]]:
    """Rooms and modules directly inside a room, and which of each other they import."""
    prefix = f"icekeeper.{house}."

    def child(module: str) -> str | None:
        return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None

    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        importer = child(name)
        if importer is not None:
            found.setdefault(importer, set()).update(
                target for target in map(child, own_imports(path)) if target not in (None, importer)
            )
    return found


@pytest.mark.parametrize("house", HOUSES)
def test_rooms_and_modules_inside_a_room_form_no_circle(house: str) -> None:
    assert_acyclic(children(house))


def test_no_operation_knows_another() -> None:
    rooms = {
        name
        for name in children("operations")
        if (path := MODULES.get(f"icekeeper.operations.{name}")) and path.name == "__init__.py"
    }
    assert {"compaction", "expiry", "manifests", "orphans", "position_deletes", "statistics"} <= rooms
    assert {name: targets for name, targets in children("operations").items() if name in rooms and targets} == {}


def test_no_module_imports_itself_in_the_end() -> None:
    assert_acyclic({name: {target for target in own_imports(path) if target != name} for name, path in MODULES.items()})


def assert_acyclic(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("importer", sorted(UNKNOWN_TO))
def test_a_room_knows_nothing_of_what_is_not_its_business(importer: str) -> None:
    assert forbidden_imports(importer, UNKNOWN_TO[importer]) == set()


@pytest.mark.parametrize("importer", PURE)
def test_rules_are_pure(importer: str) -> None:
    assert forbidden_imports(importer, SIDE_EFFECTS) == set()
