"""Files that ``make fuzz`` found, on which a reader once failed, end in a named error or a result
(rule: damage-ends-in-a-named-error, bound-foreign-bytes)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.hostile.fuzz import folder_of
from support.hostile.targets import TARGETS

FOUND = Path(__file__).parent / "findings"
CHANGED = 50


def test_sound_files_findings_and_changed_files_end_in_a_named_error_or_a_result() -> None:
    """In a separate process, because some of them once killed it."""
    command = [sys.executable, "-m", "support.hostile.fuzz", "--again", str(FOUND), "--changes", str(CHANGED)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ICEKEEPER_MAX_UNPACKED_MB": "64"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    lines = completed.stdout.splitlines()
    problems = [lines[at - 1 : at + 1] for at, line in enumerate(lines) if line.startswith("PROBLEM")]
    assert problems == []
    assert completed.returncode == 0, (lines[-1], completed.stderr[-2000:])
    kept = {f"{target}: found {path.name}" for target in TARGETS for path in (FOUND / folder_of(target)).glob("*")}
    assert len(kept) == sum(1 for path in FOUND.glob("*/*"))
    assert kept.issubset(lines)
    passes = CHANGED // 10
    assert sum(": changed " in line for line in lines) == CHANGED * (len(TARGETS) - 1) + passes
