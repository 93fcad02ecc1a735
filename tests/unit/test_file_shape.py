"""A file says what it is for, a function fits on a screen; only the face of a package lists what it offers."""

from __future__ import annotations

import ast
from pathlib import Path

from support.source_tree import BESIDE, IMPORTS_OF_SPARK, SOURCES, relative

MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "process"}
LONGEST_JOB = 250
LONGEST_FUNCTION = 60


def test_a_file_has_a_name_that_says_something() -> None:
    paths = [relative(path) for path in (*SOURCES, *BESIDE)]
    assert [path for path in paths if {Path(path).stem, Path(path).parent.name} & MEANINGLESS] == []


def test_a_module_says_what_it_is_for() -> None:
    assert [relative(path) for path in (*SOURCES, *BESIDE) if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_only_the_face_of_a_package_lists_what_it_offers() -> None:
    offers = {path: _offered(ast.parse(path.read_text())) for path in (*SOURCES, *BESIDE)}
    assert [relative(path) for path, names in offers.items() if names is not None and path.name != "__init__.py"] == []
    faces = [path for path, names in offers.items() if names is not None]
    assert faces, "else this test looks at nothing"
    for path in faces:
        assert offers[path] == _bound(ast.parse(path.read_text())), relative(path)


def _offered(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def _bound(tree: ast.Module) -> set[str]:
    """What a face imports from its package or defines."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def test_a_function_fits_on_a_screen() -> None:
    """What takes more lines does several things, and its parts have names."""
    found = [
        f"{relative(path)}:{node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert found == []


def test_jobs_are_thin() -> None:
    """Glue scripts may import pyspark; they hold no logic of their own."""
    assert [path.name for path in IMPORTS_OF_SPARK if len(path.read_text().splitlines()) > LONGEST_JOB] == []
