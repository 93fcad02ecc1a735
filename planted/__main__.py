"""Plant each fault in a copy of the repository, and require that its tests fail.

``python -m planted`` plants all faults, ``python -m planted WORD …`` those whose names contain one of the words.  With
``--tests PATH …`` these tests run for each fault in place of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from planted.faults import FAULTS, Fault

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = Path("layers/icekeeper/src/icekeeper")
# What pytest ends with: all passed, a test failed.
_PASSED, _FAILED = 0, 1


def main() -> int:
    """Plant the faults that the command line names; 1 if one of them is not found."""
    parser = argparse.ArgumentParser(prog="python -m planted", description="Plant faults and see that tests find them.")
    parser.add_argument("words", nargs="*", help="plant only faults whose names contain one of these words")
    parser.add_argument("--tests", nargs="+", default=[], help="run these tests in place of each fault's own")
    asked = parser.parse_args()
    faults = [one for one in FAULTS if not asked.words or any(word in one.name for word in asked.words)]
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder) / "repository"
        _copy(copy)
        missed = [one.name for one in faults if not _is_found(copy, one, asked.tests)]
    print(f"{len(faults) - len(missed)} of {len(faults)} planted faults found")
    for name in missed:
        print(f"NOT FOUND: {name}")
    return 1 if missed or not faults else 0


def _copy(to: Path) -> None:
    """Copy what git tracks, as it is in this folder, and link the environments."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_ROOT, capture_output=True, check=True, text=True).stdout
    for name in listed.split("\0"):
        source = _ROOT / name
        if name and source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to / name)
    for environment in (".venv", "build"):
        if (_ROOT / environment).exists():
            (to / environment).symlink_to(_ROOT / environment)


def _is_found(copy: Path, fault: Fault, tests: Sequence[str]) -> bool:
    """Whether the fault's tests fail; prints a line with the first test that does.

    Raises:
        SystemExit: the code is not there exactly once, or the tests did not run.
    """
    file = copy / _PACKAGE / fault.file
    sound = file.read_text()
    if sound.count(fault.code) != 1:
        sys.exit(f"{fault.file}: the code of '{fault.name}' is there {sound.count(fault.code)} times, not once")
    file.write_text(sound.replace(fault.code, fault.faulty))
    began_s = time.monotonic()
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--in-memory", "-p", "no:randomly", "-n", "0"]
        path = os.pathsep.join(str(copy / place) for place in (_PACKAGE.parent, ""))
        ran = subprocess.run(
            [*command, *(tests or fault.tests)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
    finally:
        file.write_text(sound)
    failures = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    if ran.returncode not in (_PASSED, _FAILED) or (ran.returncode == _FAILED) != bool(failures):
        sys.exit(f"the tests of '{fault.name}' did not run:\n{ran.stdout}\n{ran.stderr}")
    first = failures[0].split(" - ")[0].split(" ", 1)[1] if failures else "NOT FOUND"
    print(f"{fault.name}: {first} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
