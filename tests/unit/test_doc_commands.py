"""Links to headings, and commands that pages show but no test can run, are right."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from icekeeper.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_to_headings_lead_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    for path, wanted in links:
        target = page.parent / path if path else page
        headings = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)}
        assert wanted in headings, f"{path}#{wanted}"


def commands(page: str) -> Iterator[str]:
    """Each call of ``icekeeper`` in a block of code, fenced or indented, without pictures and ``--version``."""
    for line in page.replace("\\\n", " ").splitlines():
        if re.match(r"(?: {4})?icekeeper [a-z]", line) and "\u2500" not in line:
            yield line.strip()


SHOWN = [(page.name, command) for page in PAGES for command in commands(page.read_text())]


@pytest.mark.parametrize(("page", "shown"), SHOWN)
def test_the_command_line_takes_every_command_that_a_page_shows(page: str, shown: str) -> None:
    """Parsed, not run: most need a deployed stack or another catalog.  Of a synopsis the options are looked up."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("icekeeper", [], resilient_parsing=True)
    arguments = shlex.split(shown, comments=True)[1:]
    name = ""
    while hasattr(command, "get_command"):
        name, *arguments = arguments
        command = command.get_command(context, name.partition("|")[0])
        assert command is not None, f"{page}: no command {name}"
    if "[-" in shown:
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", shown)) <= known
    else:
        # With its parent, whose settings click keeps with the command; of one without, "-h" would be unknown later on.
        command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize(
    ("shown", "called"),
    [
        ("make smoke STACK=icekeeper", ["-m", "smoke", "icekeeper"]),
        ("make deploy-artifacts ARCHITECTURE=arm64", ["-m", "artifacts", "--architecture", "arm64"]),
    ],
)
def test_make_passes_on_what_the_page_of_deployment_says(shown: str, called: list[str]) -> None:
    """Told by make, not done: the one needs a stack, the other builds for another processor."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert re.search(rf"(?:^ +|`){re.escape(shown)}(?:$|`)", page, re.MULTILINE)
    name, *arguments = shown.split()
    # What a make around the tests leaves behind would be said, too.
    alone = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    told = subprocess.run([name, "-n", *arguments], cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1].split()[1:] == called
