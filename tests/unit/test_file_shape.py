"""File names are specific, and a function fits on a screen."""

from __future__ import annotations

import ast
from pathlib import Path

from support.source_tree import BESIDE, SOURCES, nodes, relative

MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "process"}
LONGEST_FUNCTION = 60


def test_a_file_has_a_specific_name() -> None:
    paths = [relative(path) for path in (*SOURCES, *BESIDE)]
    assert [path for path in paths if {Path(path).stem, Path(path).parent.name} & MEANINGLESS] == []


def test_a_function_fits_on_a_screen() -> None:
    """A longer function does several things, which deserve names."""
    found = [
        f"{relative(path)}:{node.name}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert found == []
