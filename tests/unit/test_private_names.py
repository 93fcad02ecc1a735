"""Private names stay private: those of PyIceberg in one room, those of an object in its class."""

from __future__ import annotations

import ast

from support.source_tree import SOURCES, imported, is_within, nodes, relative

# What a test may take from PyIceberg is of no concern here; what the package takes from its inside is.
PYICEBERG_INSIDES = frozenset(
    {"pyiceberg.catalog.rest", "pyiceberg.catalog.rest.scan_planning", "pyiceberg.utils.config"}
)


def test_classes_of_pyiceberg_are_extended_in_one_room() -> None:
    """A subclass reaches into its base by inheritance, which no underscore shows."""
    extended = set()
    for path in SOURCES:
        theirs = {name for module, name in imported(path) if is_within(module, "pyiceberg")}
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and theirs & {ast.unparse(base) for base in node.bases}:
                extended.add(f"{relative(path)}: {node.name}")
    assert extended == {"pyiceberg_private/rest_session.py: BoundedRestCatalog"}


def test_what_pyiceberg_keeps_private_is_used_in_one_room() -> None:
    """Underscored modules and names, and modules whose inside is no public interface."""
    strangers = set()
    for path in SOURCES:
        if relative(path).startswith("pyiceberg_private/"):
            continue
        for module, name in imported(path):
            parts = [*module.split("."), name or ""]
            if parts[0] == "pyiceberg" and (module in PYICEBERG_INSIDES or any(p.startswith("_") for p in parts)):
                strangers.add(f"{relative(path)}: {module}.{name}")
    assert strangers == set()


def test_nobody_reaches_into_another_object() -> None:
    """``thing._name`` is for a class's own methods; across modules it would escape every other check."""
    reaches = []
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        own = {
            name
            for node in ast.walk(tree)
            for name in (
                [node.name]
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                else [node.target.id]
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                else [node.attr]
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
                else []
            )
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node.attr in own:
                continue
            if relative(path).startswith("pyiceberg_private/"):
                continue
            if node.attr.startswith("_") and not node.attr.startswith("__"):
                reaches.append(f"{relative(path)}:{node.lineno} {ast.unparse(node)}")
    # os._exit is the documented way for a forked child to end without its parent's clean-up; a fork server that has to
    # end before its process does has no public way at all.
    known = ("os._exit", "multiprocessing.forkserver._forkserver._stop", "multiprocessing.forkserver._forkserver")
    assert [reach for reach in reaches if not reach.endswith(known)] == []
