"""What the command says as a process where its output takes nothing, or its arguments are no text (rule 120)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ICEKEEPER = f"{Path(sys.executable).parent}/icekeeper"


def called(arguments: str, output: str, **environment: str) -> tuple[int, str]:
    """Exit code and standard error; ``output`` is how a shell redirects standard output."""
    done = subprocess.run(
        ["bash", "-c", f"{ICEKEEPER} {arguments} {output}"],
        env={"PATH": os.environ["PATH"], **environment},
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(("output", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
def test_a_document_that_cannot_be_written_is_told_in_one_sentence(output: str, why: str, tmp_path: Path) -> None:
    told = called("history ns.t --catalog nowhere --json", output, HOME=str(tmp_path))
    assert told == (1, f"error: standard output cannot be written to: {why}\n")


def test_text_for_people_that_cannot_be_written_is_told_as_a_document_is(tmp_path: Path) -> None:
    told = called("requests list", ">/dev/full", HOME=str(tmp_path))
    assert told == (1, "error: standard output cannot be written to: No space left on device\n")


def test_an_argument_that_the_locale_cannot_decode_is_a_wrong_call(tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    code, told = called("history ns.tä --catalog nowhere", "", HOME=str(tmp_path), **locale)
    assert code == 2
    assert told.startswith(r"error: argument 'ns.t\udcc3\udca4' is no text in this locale")
    assert len(told.splitlines()) == 1
