"""The shape of the house: imports point downwards, rooms know what is their business only, rules are pure."""

from __future__ import annotations

from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter

import pytest

from support.house_plan import FLOORS, INNER_FLOORS, PURE, SIDE_EFFECTS, UNKNOWN_TO
from support.source_tree import (
    MODULES,
    ROOT,
    imported,
    is_within,
    own_imports,
    relative,
    room,
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


def test_every_room_has_its_floor() -> None:
    rooms = {room(name) for name in MODULES if name != "icekeeper"}
    placed = [name for floor in FLOORS for name in floor]
    assert sorted(placed) == sorted(rooms)


def test_the_docs_describe_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    described = {
        named.strip("` /").removesuffix(".py")
        for line in text.splitlines()
        if line.startswith("| `")
        for named in line.split("|")[1].split(",")
    }
    assert {name for floor in FLOORS for name in floor} <= described


def test_imports_point_downwards() -> None:
    level = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    upwards = [
        f"{relative(path)} (floor {level[room(name)]}) imports {target} (floor {level[room(target)]})"
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


def test_every_room_with_rooms_inside_has_floors_of_its_own() -> None:
    houses = {
        name.removeprefix("icekeeper.").rpartition(".")[0]
        for name, path in MODULES.items()
        if path.name == "__init__.py" and name.count(".") >= 2
    }
    assert houses == set(INNER_FLOORS)


@pytest.mark.parametrize("house", sorted(INNER_FLOORS))
def test_imports_inside_a_room_point_downwards(house: str) -> None:
    found = children(house)
    level = {name: number for number, floor in enumerate(INNER_FLOORS[house]) for name in floor}
    assert sorted(level) == sorted(found)
    assert [
        f"{importer} (floor {level[importer]}) imports {target} (floor {level[target]})"
        for importer, targets in found.items()
        for target in targets
        if level[target] >= level[importer]
    ] == []


def test_no_module_imports_itself_in_the_end() -> None:
    graph = {name: {target for target in own_imports(path) if target != name} for name, path in MODULES.items()}
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
