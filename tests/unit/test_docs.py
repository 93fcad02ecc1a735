"""The documentation agrees with the code."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main

from icekeeper.cli.app import app, main
from icekeeper.deletion.file_needs import GC_DISABLED
from icekeeper.health.table_state import WarningKind
from icekeeper.operations.compaction.plan.plan_groups import DELETES_DISABLED, NO_SNAPSHOT, NOTHING_ELIGIBLE
from icekeeper.operations.expiry.retention import NOTHING_TO_EXPIRE
from icekeeper.operations.manifests.plan_manifests import NO_ENTRIES
from icekeeper.operations.old_partitions import NO_RETENTION
from icekeeper.operations.old_partitions import NOTHING_TO_EXPIRE as NO_PARTITIONS
from icekeeper.operations.position_deletes import plan_merges as position_deletes
from icekeeper.operations.statistics import plan_statistics as statistics
from icekeeper.policy import Operation
from icekeeper.policy.ownership import OWNED, OWNED_FOR_ALL_TABLES
from icekeeper.policy.partition_time import NO_TIME_FIELD
from icekeeper.verification.checks import ProblemKind

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OPERATIONS = ROOT / "docs" / "operations"
SECTIONS = ["What it does", "When it is skipped", "Settings", "What can go wrong", "Metrics"]


def test_the_policy_page_is_generated_from_the_model() -> None:
    script = [sys.executable, str(ROOT / "docs" / "generate_policy.py")]
    rendered = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "policy.md").read_text() == rendered


def test_every_metric_is_on_the_page_of_its_operation() -> None:
    pages = {path.stem: path.read_text() for path in OPERATIONS.glob("*.md") if path.stem != "index"}
    assert set(pages) == {operation.value for operation in Operation}
    sources = (ROOT / "layers" / "icekeeper" / "src" / "icekeeper" / "operations").rglob("*.py")
    code = "".join(path.read_text() for path in sources)
    for name, page in pages.items():
        assert re.findall(r"^## (.*)$", page, re.MULTILINE) == SECTIONS
        keys = set(re.findall(rf'"{name}\.(\w+)"', code))
        assert keys
        assert {key for key in keys if f"`{key}`" not in page} == set()
        listed = page.partition("Metrics: ")[2].partition(".")[0]
        assert set(re.findall(r"`(\w+)`", listed)) == keys


def test_verify_and_the_page_name_the_same_remedies() -> None:
    """The command prints remedies itself, because users may not have the page."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", (ROOT / "docs" / "recovery.md").read_text(), re.MULTILINE)
    assert dict(rows) == {kind.value: kind.remedy for kind in ProblemKind}


def test_every_kind_of_warning_is_explained() -> None:
    bucket = (ROOT / "layers/icekeeper/src/icekeeper/policy/ownership.py").read_text()
    kinds = {*WarningKind, *re.findall(r'"(bucket_[a-z_]+)"', bucket)}
    table = (ROOT / "docs" / "detection.md").read_text().partition("| warning | when |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} == kinds


def test_every_constant_reason_is_on_a_page() -> None:
    text = "".join(path.read_text() for path in OPERATIONS.glob("*.md"))
    reasons = [NOTHING_ELIGIBLE, DELETES_DISABLED, NOTHING_TO_EXPIRE, GC_DISABLED, NO_SNAPSHOT, NO_ENTRIES]
    reasons += [NO_RETENTION, NO_TIME_FIELD, NO_PARTITIONS, position_deletes.NOTHING_ELIGIBLE]
    reasons += [OWNED, OWNED_FOR_ALL_TABLES]
    reasons += [statistics.NO_COLUMNS, statistics.UP_TO_DATE]
    assert [reason for reason in reasons if reason not in text] == []


def test_the_site_builds_without_warnings_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    """Every page is in its navigation, and every link has a target."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"([^\"]+)", page.read_text())
        assert [address for address in loaded if "//" in address] == [], page
    errors, commands = ((tmp_path / f"{name}.html").read_text() for name in ("errors", "commands"))
    assert "<code>TableUnsupported</code>" in errors
    assert "icekeeper policy set" in commands
    assert "run-worker" not in commands
    first = (tmp_path / "index.html").read_text()
    shown = ('src="ratios.svg"', "make demo", "make test", "Apache Amoro", "Getting started")
    assert [words for words in shown if words not in first] == []
    assert (tmp_path / "ratios.svg").is_file()


def test_the_wheel_contains_the_pages_for_users(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    pages = [str(path.relative_to(ROOT)) for path in PAGES if path.parent in (ROOT / "docs", OPERATIONS)]
    assert included == {page: f"icekeeper/{page}" for page in pages}
    assert main(["docs"]) == 0
    assert "recovery               When something goes wrong" in capsys.readouterr().out.splitlines()
    assert main(["docs", "recovery"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "recovery.md").read_text()
    assert main(["docs", "recover"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no page 'recover'; the pages are advice, ")


def anchor(heading: str) -> str:
    """The anchor that GitHub derives from a heading."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings() -> None:
    for page in PAGES:
        for path, heading_link in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
            target = page.parent / path if path else page
            assert target.exists(), f"{page}: {path}"
            if heading_link:
                headings = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)}
                assert heading_link in headings, f"{page}: {path}#{heading_link}"


def commands(page: str) -> Iterator[str]:
    """Each call of ``icekeeper`` in a code block, fenced or indented, without diagrams and ``--version``."""
    for line in page.replace("\\\n", " ").splitlines():
        if re.match(r"(?: {4})?icekeeper [a-z]", line) and "\u2500" not in line:
            yield line.strip()


def test_the_command_line_accepts_every_command_on_a_page() -> None:
    """Commands are parsed, not run, because most need a stack or catalog; of a synopsis, only options are checked."""
    for page in PAGES:
        for command_line in commands(page.read_text()):
            assert_accepted(page.name, command_line)


def assert_accepted(page: str, command_line: str) -> None:
    command: Any = typer.main.get_command(app)
    context = command.make_context("icekeeper", [], resilient_parsing=True)
    arguments = shlex.split(command_line, comments=True)[1:]
    name = ""
    while hasattr(command, "get_command"):
        name, *arguments = arguments
        command = command.get_command(context, name.partition("|")[0])
        assert command is not None, f"{page}: no command {name}"
    if "[-" in command_line:
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", command_line)) <= options
    else:
        # click stores the parent's settings with the command; without a parent, "-h" would be unknown afterwards.
        command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize(
    ("shown", "called"),
    [
        ("make smoke STACK=icekeeper", ["-m", "smoke", "icekeeper"]),
        ("make deploy-artifacts ARCHITECTURE=arm64", ["-m", "artifacts", "--architecture", "arm64"]),
    ],
)
def test_make_passes_the_documented_arguments(shown: str, called: list[str]) -> None:
    """make prints the commands with -n: one needs a stack, the other builds for another processor."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert re.search(rf"(?:^ +|`){re.escape(shown)}(?:$|`)", page, re.MULTILINE)
    name, *arguments = shown.split()
    # Variables of an outer make would change the output.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        [name, "-n", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].split()[1:] == called


def test_the_readme_names_every_extra_and_installs_from_a_checkout() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    section = (ROOT / "README.md").read_text().partition("## Install\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(extras)
    installed = re.findall(r"pip install '([^']+)'", section)
    assert installed
    assert all(re.fullmatch(r"\.(\[\w+\])?", what) for what in installed)


# Schemas of --json documents; tests of the command validate its output.

SCHEMAS = ROOT / "docs" / "schemas"


def _commands_with_json() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        for nested, item in getattr(command, "commands", {"": command}).items():
            if any("--json" in parameter.opts for parameter in item.params):
                yield f"{name}-{nested}".rstrip("-")


def test_the_schemas_are_generated_by_the_script(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "generate_schemas.py"))
    script["main"].__globals__["FOLDER"] = tmp_path
    script["main"]()
    assert {path.name: path.read_text() for path in SCHEMAS.iterdir()} == {
        path.name: path.read_text() for path in tmp_path.iterdir()
    }


def test_every_json_document_has_a_schema_and_every_field_a_description() -> None:
    found = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.iterdir()}
    assert set(found) == {"error", *_commands_with_json()}

    def undescribed(schema: Mapping[str, Any], parent: str) -> Iterator[str]:
        for name, item in schema.get("properties", {}).items():
            if "$schema" not in item and not _description(item):
                yield f"{parent}.{name}"
            yield from undescribed(item, f"{parent}.{name}")
        for inner in ("items", "additionalProperties"):
            if isinstance(schema.get(inner), dict):
                yield from undescribed(schema[inner], f"{parent}[]")

    assert [field for name, schema in found.items() for field in undescribed(schema, name)] == []


def _description(schema: Mapping[str, Any]) -> str | None:
    return schema.get("description") or next(
        (item["description"] for item in schema.get("anyOf", ()) if "description" in item), None
    )
