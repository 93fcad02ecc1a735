"""Every citation leads to rules.md or platform.md in docs/contributing, and every rule and fact there is in use.

A citation is in parentheses: ``(rule: NAME)``, ``(platform: NAME)``, several as ``(rule: NAME, NAME, platform: NAME)``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "docs" / "contributing"
PAGES = {"rule": CONTRIBUTING / "rules.md", "platform": CONTRIBUTING / "platform.md"}
THREATS = ROOT / "docs" / "threat-model.md"
SOURCE = ("layers", "functions", "glue_jobs", "benchmarks", "template.yaml", "Makefile", "pyproject.toml", ".github")
# Beside what is deployed.
BESIDE = ("artifacts", "local_stack", "state_machine")
OTHERS = (*BESIDE, "tests", "docs", "events", ".ci", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".json", ".toml", ".java", ".properties", ""}

_NAME = r"[a-z0-9]+(?:-[a-z0-9]+)+"
CITATION = re.compile(rf"\(((?:rule|platform): {_NAME}(?:, (?:(?:rule|platform): )?{_NAME})*)[;)]")
HEADING = re.compile(rf"^### ({_NAME})$", re.MULTILINE)
# Rules of somebody's policy file are counted in messages.
RULE_OF_A_POLICY_FILE = re.compile(r"policy file \S+ rule \d+|\"rule \d+")
# By number, or by a name that is no citation: without parentheses, or with a line break inside.
MENTION = re.compile(rf"\b(?:rules?|platforms?)\s\d+|\b(?:rule|platform)s?:?\s+{_NAME}(?=[,;)])")
# Documents that are not in this repository, and places of one machine.  A literal beginning is searched fast.
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
    """Path below the root, and text, of every file in these folders; this file apart."""
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


def sections(kind: str) -> list[tuple[str, str]]:
    """Name and text of each rule or fact, in the order of the page."""
    parts = HEADING.split(PAGES[kind].read_text())
    return [(name, text.split("\n## ")[0]) for name, text in zip(parts[1::2], parts[2::2], strict=True)]


def names(kind: str) -> set[str]:
    return {name for name, _ in sections(kind)}


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
def test_every_heading_is_a_name(kind: str) -> None:
    headings = re.findall(r"^### (.*)$", PAGES[kind].read_text(), re.MULTILINE)
    assert headings == [name for name, _ in sections(kind)]


def test_names_are_given_once() -> None:
    times = Counter(name for kind in PAGES for name, _ in sections(kind))
    assert [name for name, count in times.items() if count > 1] == []


@pytest.mark.parametrize("kind", PAGES)
def test_every_citation_leads_somewhere(kind: str) -> None:
    lost = {path: cited(text, kind) - names(kind) for path, text in texts(*SOURCE, *OTHERS)}
    assert {path: missing for path, missing in lost.items() if missing} == {}


def test_every_rule_is_kept_by_the_source() -> None:
    in_use = {name for _, text in texts(*SOURCE) for name in cited(text, "rule")}
    assert names("rule") - in_use == set()


def test_every_rule_is_cited_by_a_test() -> None:
    proven = {name for _, text in texts("tests") for name in cited(text, "rule")}
    assert names("rule") - proven == set()


def test_every_fact_is_relied_on() -> None:
    in_use = {name for _, text in texts(*SOURCE, *BESIDE, "tests") for name in cited(text, "platform")}
    assert names("platform") - in_use == set()


def test_citations_have_one_form() -> None:
    """A number, a line break inside, or no parentheses: then neither a reader nor ``grep`` finds it."""
    others = {
        path: MENTION.findall(RULE_OF_A_POLICY_FILE.sub("", CITATION.sub("", text)))
        for path, text in texts(*SOURCE, *OTHERS)
    }
    assert {path: found for path, found in others.items() if found} == {}


def test_every_rule_has_a_source() -> None:
    assert [name for name, text in sections("rule") if not re.search(r"^Source: \S", text, re.MULTILINE)] == []


def test_every_boundary_of_the_threat_model_names_tests_that_exist() -> None:
    page = THREATS.read_text()
    assert page.count("\n## Boundaries\n") == 1, "two branches' tables were put below each other"
    rows = re.findall(r"^\| (.+) \|$", section_of(page, "Boundaries"), re.MULTILINE)[2:]
    lost = []
    for cells in (row.split(" | ") for row in rows):
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::([\w:]+))?`", cells[-1])
        known = [path for path, test in named if (ROOT / path).is_file() and test in {"", *names_of_tests(ROOT / path)}]
        if len(cells) != 4 or not named or len(known) != len(named):
            lost.append(cells)
    assert lost == []


def section_of(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_fact_says_how_it_is_known() -> None:
    known = r"^(?:\* )?(?:Measured|Documented): \S"
    assert [name for name, text in sections("platform") if not re.search(known, text, re.MULTILINE)] == []


def test_nothing_outside_the_repository_is_cited() -> None:
    found = {
        path: [words for name in OUTSIDE for words in name.findall(text)] for path, text in texts(*SOURCE, *OTHERS)
    }
    assert {path: words for path, words in found.items() if words} == {}
