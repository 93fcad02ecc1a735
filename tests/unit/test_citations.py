"""Every citation names a rule or fact of docs/contributing, and source and tests cite every rule.

A citation is in parentheses: ``(rule: NAME)``, ``(platform: NAME)``, several as ``(rule: NAME, NAME, platform: NAME)``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "docs" / "contributing"
PAGES = {"rule": CONTRIBUTING / "rules.md", "platform": CONTRIBUTING / "platform.md"}
THREATS, TESTS = ROOT / "docs" / "threat-model.md", ROOT / "tests"
SOURCE = ("layers", "functions", "glue_jobs", "benchmarks", "template.yaml", "Makefile", "pyproject.toml", ".github")
OTHERS = (
    "artifacts",
    "local_stack",
    "state_machine",
    "tests",
    "docs",
    "events",
    ".ci",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".json", ".toml", ".java", ".properties", ""}

_NAME = r"[a-z0-9]+(?:-[a-z0-9]+)+"
CITATION = re.compile(rf"\(((?:rule|platform): {_NAME}(?:, (?:(?:rule|platform): )?{_NAME})*)[;)]")
HEADING = re.compile(rf"^### ({_NAME})$", re.MULTILINE)
# Documents outside this repository, and paths of one machine.  A literal prefix makes the search fast.
OUTSIDE = tuple(
    re.compile(text)
    for text in (
        r"DESIGN[ .:]",
        r"ICEBERG.RULES",
        r"PLATFORM(?:\.md| facts)",
        r"PEERS\b",
        r"HOUSE\.md",
        r"STYLE\.md",
        r"[Ss]eeds? 0\d\d",
        r"/work/(?:shared|main|wt|brief)",
        r"shared/(?:seeds|probes|[A-Z])",
    )
)


def texts(*places: str) -> Iterator[tuple[str, str]]:
    """Relative path and text of every file in these folders, except this file."""
    return chain.from_iterable(map(_texts, places))


@cache
def _texts(place: str) -> list[tuple[str, str]]:
    top = ROOT / place
    files = (file for file in (sorted(top.rglob("*")) if top.is_dir() else [top]) if file.suffix in SUFFIXES)
    ours = (file for file in files if file.is_file() and file != Path(__file__).resolve())
    return [(str(file.relative_to(ROOT)), file.read_text()) for file in ours if "__pycache__" not in file.parts]


def cited(text: str, kind: str) -> set[str]:
    found, current = set(), ""
    for item in ", ".join(CITATION.findall(text)).split(", "):
        word, _, name = item.rpartition(": ")
        current = word or current
        if current == kind and name:
            found.add(name)
    return found


def names(kind: str) -> set[str]:
    return set(HEADING.findall(PAGES[kind].read_text()))


@cache
def names_of_tests(path: Path) -> set[str]:
    """The tests of a file as pytest names them, found without importing it."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


@pytest.mark.parametrize("kind", PAGES)
def test_every_citation_names_an_existing_rule_or_fact(kind: str) -> None:
    lost = {path: cited(text, kind) - names(kind) for path, text in texts(*SOURCE, *OTHERS)}
    assert {path: missing for path, missing in lost.items() if missing} == {}


def test_every_rule_is_cited_by_the_source() -> None:
    in_use = {name for _, text in texts(*SOURCE) for name in cited(text, "rule")}
    assert names("rule") - in_use == set()


def test_every_rule_is_cited_by_a_test() -> None:
    proven = {name for _, text in texts("tests") for name in cited(text, "rule")}
    assert names("rule") - proven == set()


def test_every_boundary_of_the_threat_model_names_tests_that_exist() -> None:
    page = THREATS.read_text()
    assert page.count("\n## Boundaries\n") == 1, "two branches' tables were put below each other"
    rows = re.findall(r"^\| (.+) \|$", section_of(page, "Boundaries"), re.MULTILINE)[2:]
    lost = []
    for cells in (row.split(" | ") for row in rows):
        named = re.findall(r"`([\w/]+\.py)(?:::([\w:]+))?`", cells[-1])
        found = [
            path for path, test in named if (TESTS / path).is_file() and test in {"", *names_of_tests(TESTS / path)}
        ]
        if len(cells) != 4 or not named or len(found) != len(named):
            lost.append(cells)
    assert lost == []


def section_of(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_nothing_outside_the_repository_is_cited() -> None:
    found = {
        path: [words for name in OUTSIDE for words in name.findall(text)] for path, text in texts(*SOURCE, *OTHERS)
    }
    assert {path: words for path, words in found.items() if words} == {}
