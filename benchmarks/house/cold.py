"""What an import costs in a fresh interpreter: processor time, and the modules that it loads.

Other work on the machine lengthens processor time less than the time by the clock, and the least of several less than
their median.  Two checkouts are compared in one run (``--beside``), in which the least of both vary by 1 %.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

STARTS: Mapping[str, str] = {
    "empty program": "pass",
    "function detect": "import detect.handler",
    "function plan": "import plan.handler",
    "function report": "import report.handler",
    "icekeeper --help": "from icekeeper.cli import main; main(['--help'])",
    "Spark worker": "import icekeeper.operations.compaction.work.rewrite",
}
"""What is measured, and the program."""
_PROGRAM = "import sys; sys.path.insert(0, {functions!r})\n{start}\nprint(len(sys.modules), file=sys.stderr)"


@dataclass(frozen=True, slots=True)
class Start:
    """What one program takes, in milliseconds of user and system time together."""

    least_ms: float
    median_ms: float
    modules: int


def measure_starts(checkouts: Sequence[Path], rounds: int = 9) -> list[dict[str, Start]]:
    """Start each program of each checkout in turn, ``rounds`` times; the first is this one, others have a ``.venv``.

    A round before them, which compiles what is new, does not count.
    """
    times: dict[tuple[Path, str], list[float]] = defaultdict(list)
    modules: dict[tuple[Path, str], int] = {}
    for turn in range(rounds + 1):
        for (name, start), root in product(STARTS.items(), checkouts):
            python = sys.executable if root == checkouts[0] else str(root / ".venv" / "bin" / "python")
            program = _PROGRAM.format(functions=str(root / "functions"), start=start)
            taken_ms, modules[root, name] = _started(python, program)
            if turn:
                times[root, name].append(taken_ms)
    return [
        {
            name: Start(min(times[root, name]), statistics.median(times[root, name]), modules[root, name])
            for name in STARTS
        }
        for root in checkouts
    ]


def _started(python: str, program: str) -> tuple[float, int]:
    """The processor time and the number of modules of a program.

    Raises:
        RuntimeError: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    words = [python, "-c", program]
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{program} ended with {process.returncode}: {said}")
    return (used.ru_utime + used.ru_stime) * 1000, int(said.split()[-1])
