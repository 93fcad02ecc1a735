"""Help that a newcomer can follow: every command has an example that works as a call, and tells the exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from icekeeper.cli import main
from icekeeper.cli.arguments import EXAMPLES, EXIT_CODES

GROUPS = ("policy", "pin", "stage", "claims", "requests")


def help_of(capsys: pytest.CaptureFixture[str], *call: str) -> str:
    assert main([*call, "-h"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def listed(page: str) -> list[str]:
    """The commands that a help page lists, in its order."""
    lines = page.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines]


def test_commands_stand_in_the_order_of_use_with_whole_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = help_of(capsys)
    top = [name for name in EXAMPLES if " " not in name]
    assert listed(page) == top
    assert top[:5] == ["demo", "detect", "health", "plan", "maintain"]
    assert "..." not in page.partition("Commands:")[2]
    for group in GROUPS:
        page = help_of(capsys, group)
        assert listed(page) == [name.split()[1] for name in EXAMPLES if name.startswith(f"{group} ")]
        assert "..." not in page.partition("Commands:")[2]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_help_has_exit_codes_and_an_example_of_its_own_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = help_of(capsys, *name.split())
    for code in EXIT_CODES:
        assert f"  {code}\n" in page
    arguments = EXAMPLES[name][1]
    if name not in GROUPS:
        assert f"Example:\n    icekeeper {name} {arguments}\n" in page
        options = page.partition("Options:")[2].partition("Example:")[0]
        assert [word for word in arguments.split() if word.startswith("--") and f"  {word}" not in options] == []


def test_the_version_and_the_module() -> None:
    told = f"icekeeper {version('icekeeper')}\n"
    done = subprocess.run([sys.executable, "-m", "icekeeper", "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (told, "")


def test_a_shell_can_complete_commands() -> None:
    asked = {"_ICEKEEPER_COMPLETE": "complete_bash", "COMP_WORDS": "icekeeper po", "COMP_CWORD": "1"}
    call = [sys.executable, "-c", "import sys; from icekeeper.cli import main; sys.exit(main([]))"]
    done = subprocess.run(call, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["policy"]
