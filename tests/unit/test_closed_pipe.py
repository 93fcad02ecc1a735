"""Whoever closes the pipe has read enough: the exit code stays that of what was done (rule 120)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_TELL = """
import sys
from icekeeper.cli.console import people, print_json
if sys.argv[1] == "text":
    for _ in range(3):
        people(as_json=False).print("told")
else:
    print_json({"status": "succeeded"})
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("form", "code"), [("text", 0), ("text", 1), ("json", 0)])
def test_a_closed_pipe_changes_no_exit_code(form: str, code: int) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        told = subprocess.run(
            [sys.executable, "-c", _TELL, form, str(code)], stdout=write_end, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write_end)
    assert (told.returncode, told.stderr) == (code, b"")
