"""Check the models exhaustively, and that each is rejected without any of its guards: ``make model``.

A model is translated by Debian's ``spin`` and compiled by ``gcc``.  A run that reaches a limit of depth or memory has
failed, because states were not visited.  ``models/README.md`` describes the models.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = ("commit", "expiry", "sweep")
LIVENESS = ("expiry", "sweep")
"""The models whose smaller variant shows that garbage goes."""
LIVE_GUARDS = ("RECORD", "CLEANING")
"""Guards against garbage that stays for ever, which only the smaller variants show."""
MOST_MB = 3500
DEPTH = 100_000
_GUARD = re.compile(r"\bNO_([A-Z_]+)\b")
_STATES = re.compile(r"(\d+) states, stored")
_ERRORS = re.compile(r"errors: (\d+)")
_VIOLATED = re.compile(r"assertion violated (\w+)")
INVARIANTS = ("no_needed_file_deleted", "no_row_lost", "no_row_doubled", "readable_after_crash", "garbage_goes")
_LIMITS = (
    "max search depth too small",
    "out of memory",
    "reached -DMEMLIM bound",
    "hash array full",
    "Search not completed",
)


@dataclass(frozen=True)
class Checked:
    """A run: the invariant that a trace violates (empty: none), states, seconds, and the limit that it reached."""

    violated: str
    states: int
    seconds: float
    limit: str


def source(model: str) -> str:
    """The text of a model."""
    return (HERE / f"{model}.pml").read_text()


def guards(model: str) -> tuple[str, ...]:
    """The guards that a model can be checked without, in the order of their names."""
    return tuple(sorted(set(_GUARD.findall(source(model))) - {"NAME"}))


def check(model: str, *defines: str, is_live: bool = False) -> Checked:
    """Check all states of a model with these macros defined; ``is_live``: that garbage goes, under weak fairness.

    Raises:
        RuntimeError: the model cannot be compiled, or the checker ended without a result.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        shutil.copy(HERE / f"{model}.pml", folder)
        macros = [f"-D{name}" for name in (*defines, *(["LIVENESS"] if is_live else []))]
        _run(folder, "spin", "-a", *macros, f"{model}.pml")
        options = [f"-DMEMLIM={MOST_MB}", "-DCOLLAPSE", *(["-DNFAIR=4"] if is_live else ["-DSAFETY"])]
        _run(folder, "gcc", "-O2", "-w", *options, "-o", "pan", "pan.c")
        ran = _run(folder, "nice", "-n", "10", "./pan", f"-m{DEPTH}", *(["-a", "-f"] if is_live else []))
    return _read(ran, time.monotonic() - began_s)


def _read(ran: str, seconds: float) -> Checked:
    errors, states = _ERRORS.search(ran), _STATES.search(ran)
    if errors is None or states is None:
        raise RuntimeError(ran)
    violated = _VIOLATED.search(ran)
    name = violated[1] if violated else "garbage_goes" if "acceptance cycle" in ran else ""
    if not name and errors[1] != "0":
        name = next((line for line in ran.splitlines() if line.startswith("pan:")), "an error")
    limit = next((limit for limit in _LIMITS if limit in ran), "")
    return Checked(name, int(states[1]), seconds, limit)


def _run(folder: str, *command: str) -> str:
    if shutil.which(command[0]) is None:
        sys.exit(f"{command[0]} is missing: apt-get install spin gcc")
    # The first trace decides; the checker ends with status 1 if there is none or a limit was reached, too.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode and command[0] != "nice":
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _say(what: str, found: Checked) -> None:
    result = f"rejected: {found.violated}" if found.violated else found.limit or "holds"
    print(f"{what:<34}{found.states:>12,} states {found.seconds:>7.1f} s  {result}", flush=True)


def main() -> int:
    """Check the models that the command line names, all by default; 1 if a result is not as it must be."""
    parser = argparse.ArgumentParser(prog="models/check.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}")
    wrong: list[str] = []
    for model in parser.parse_args().models or MODELS:
        found = check(model)
        _say(model, found)
        if found.violated or found.limit:
            wrong.append(model)
        if model in LIVENESS:
            found = check(model, is_live=True)
            _say(f"{model}, garbage_goes", found)
            if found.violated or found.limit:
                wrong.append(f"{model}, garbage_goes")
        for guard in guards(model):
            found = check(model, f"NO_{guard}", is_live=guard in LIVE_GUARDS)
            _say(f"{model} without {guard}", found)
            if found.violated not in INVARIANTS:
                wrong.append(f"{model} without {guard}")
    for what in wrong:
        print(f"WRONG: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
