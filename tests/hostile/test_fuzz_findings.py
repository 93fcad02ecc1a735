"""Files over which a reader once failed, as ``make fuzz`` found them, end in a named error or a result
(rule: damage-ends-in-a-named-error, bound-foreign-bytes)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.hostile.fuzz import folder_of
from support.hostile.targets import TARGETS

FOUND = Path(__file__).parent / "findings"
CHANGED = 100


def test_sound_files_findings_and_changed_files_end_as_promised() -> None:
    """In a process of its own: some of them once ended it."""
    words = [sys.executable, "-m", "support.hostile.fuzz", "--again", str(FOUND), "--changes", str(CHANGED)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ICEKEEPER_MAX_UNPACKED_MB": "64"}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    lines = ended.stdout.splitlines()
    problems = [lines[at - 1 : at + 1] for at, line in enumerate(lines) if line.startswith("PROBLEM")]
    assert problems == []
    assert ended.returncode == 0, (lines[-1], ended.stderr[-2000:])
    kept = {f"{target}: found {path.name}" for target in TARGETS for path in (FOUND / folder_of(target)).glob("*")}
    assert len(kept) == sum(1 for path in FOUND.glob("*/*"))
    assert kept.issubset(lines)
    passes = CHANGED // 10
    assert sum(": changed " in line for line in lines) == CHANGED * (len(TARGETS) - 1) + passes
