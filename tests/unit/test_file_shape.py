"""A file has one job and stays short, says what it is for, and names what it offers; tests are short, too."""

from __future__ import annotations

import ast
from pathlib import Path

from support.source_tree import BESIDE, IMPORTS_OF_SPARK, ROOT, SOURCES, relative

MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "process"}
LONGEST = 500
LONGEST_FUNCTION = 60


def public_names(tree: ast.Module) -> set[str]:
    """Functions, classes and constants that a module defines without a leading underscore."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def test_a_file_has_one_job() -> None:
    """Who has more lines has a second job."""
    lines = {relative(path): len(path.read_text().splitlines()) for path in (*SOURCES, *BESIDE)}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}
    assert [path for path in lines if {Path(path).stem, Path(path).parent.name} & MEANINGLESS] == []


def test_a_module_says_what_it_is_for_and_what_it_offers() -> None:
    texts = {path: path.read_text() for path in (*SOURCES, *BESIDE)}
    faults = {relative(path): _fault(path, ast.parse(text)) for path, text in texts.items() if text.strip()}
    assert {path: fault for path, fault in faults.items() if fault is not None} == {}


def _fault(path: Path, tree: ast.Module) -> str | None:
    """What is missing in a module; ``None``: nothing."""
    if not ast.get_docstring(tree):
        return "no docstring"
    offered = next(
        (
            {ast.literal_eval(element) for element in node.value.elts}
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
            and isinstance(node.value, ast.List | ast.Tuple)
        ),
        None,
    )
    defined = public_names(tree) - {"log"}
    if defined and not offered:
        return f"defines {sorted(defined)} but no __all__"
    if offered is not None and path.name != "__init__.py" and not offered <= public_names(tree):
        return f"offers {sorted(offered - public_names(tree))}, which it does not define"
    return None


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
    assert [path.name for path in IMPORTS_OF_SPARK if len(path.read_text().splitlines()) > LONGEST // 2] == []


def test_tests_stay_as_short_as_what_they_test() -> None:
    """A long file of tests has several subjects, and its name says none of them."""
    lines = {relative(path): len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}
