"""Fuzzes every reader of foreign files, guided by coverage: ``make fuzz``.

``python -m support.hostile.fuzz [--seconds N | --runs N] [--folder FOLDER] [TARGET ...]`` runs one process per format,
one after the other, with 1 GB of memory above its size at the start, and ten seconds per input.  Inputs that yield
neither a valid result nor a named error are findings: the process stores them in ``FOLDER/TARGET/findings`` and
continues.  A crash or a timeout ends the process, and a new process starts with the same corpus.

Native readers (Arrow's Parquet and ORC, CRoaring) are not instrumented; their files are changed part by part
(``frames``).  atheris, which contains libFuzzer, is not among the project's packages: ``make fuzz`` installs it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import mmap
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MOST_SECONDS = 10
MOST_MORE_BYTES = 1024 * 1024 * 1024
_UNPACKED_MB = 128
"""The default of a process of 1 GB."""
_INSTRUMENTED = ["icekeeper"]
"""Instrumented packages.  PyIceberg parses none of these files, and fastavro's parsers are compiled."""
_MOST_RESTARTS = 50
_PASS_TIMES = 10
"""How much longer a pass takes than reading a file."""
_DELETIONS = frozenset({"os.remove", "os.rmdir", "os.rename", "os.truncate", "shutil.rmtree"})
_COUNTERS = struct.Struct("<QQQQ")
"""Inputs; valid results; named errors; the slowest input in microseconds."""


# The process that fuzzes a format.


class Counters:
    """Counts the inputs of a process in a file, so that the counts survive a crash."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_COUNTERS.size))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _COUNTERS.size)
        self.values = list(_COUNTERS.unpack(self._shared))

    def begin(self) -> None:
        self.values[0] += 1
        _COUNTERS.pack_into(self._shared, 0, *self.values)

    def end(self, counter: int, seconds: float) -> None:
        self.values[counter] += counter > 0
        self.values[3] = max(self.values[3], int(seconds * 1_000_000))
        _COUNTERS.pack_into(self._shared, 0, *self.values)


class Deleted(BaseException):
    """A reader removed, renamed or truncated a file; no error handler catches this."""


def _forbid_deletions(kept: Path) -> None:
    """Raise :class:`Deleted` if a reader deletes or changes a file that it did not write itself (``copy``)."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _DELETIONS and str(kept) in str(args[0]) and "copy" not in Path(str(args[0])).name:
            raise Deleted(f"{event} {args[0]}")

    sys.addaudithook(hook)


def unnamed(read: Callable[[bytes], object], named: tuple[type[Exception], ...], data: bytes) -> tuple[bool, str]:
    """Whether the bytes were read, and the description of an unnamed error, empty if there is none.

    The description has the type of the error and the place that raised it.
    """
    try:
        read(data)
    except named as error:
        return False, "a message of several lines" if "\n" in str(error) else ""
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if re.search("icekeeper/|hostile/", f.filename)]
        return False, f"{type(error).__name__} at {' < '.join(ours[::-1][:3])}: {str(error)[:200]!r}"
    return True, ""


def _fuzz(target: str, folder: Path, options: Sequence[str]) -> None:
    atheris: Any = importlib.import_module("atheris")

    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with atheris.instrument_imports(include=_INSTRUMENTED):
        from support.hostile.targets import TARGETS

        made = TARGETS[target](scratch)
        for number, seed in enumerate(made.seeds):
            made.read(seed)  # the first call imports modules, which are instrumented, too
            (folder / "corpus" / f"seed-{number}").write_bytes(seed)
    from support.hostile.frames import changed

    _forget_mended(folder / "findings", lambda data: unnamed(made.read, made.named, data)[1])
    counters = Counters(folder / "counters")

    def use(data: bytes) -> None:
        counters.begin()
        begin = time.perf_counter()
        valid, problem = unnamed(made.read, made.named, data)
        counters.end(1 if valid else 0 if problem else 2, time.perf_counter() - begin)
        if problem:
            _keep(folder / "findings", problem, data)

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        return changed(data, most, seed, atheris.Mutate)

    longest = max(4096, *(len(seed) * 3 // 2 for seed in made.seeds))
    atheris.Setup([sys.argv[0], *options, f"-max_len={longest}", str(folder / "corpus")], use, custom_mutator=mutator)
    if not made.deletes:
        _forbid_deletions(scratch)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_MORE_BYTES,) * 2)
    atheris.Fuzz()


def _keep(findings: Path, problem: str, data: bytes) -> None:
    """Store the shortest input of each problem; problems whose messages differ only in numbers are the same."""
    name = hashlib.sha256(re.sub(r"\d+|'.*", "", problem.partition(": ")[0] + problem).encode()).hexdigest()[:12]
    path = findings / f"{name}.bin"
    if not path.exists() or path.stat().st_size > len(data):
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(problem + "\n")


def try_again(findings: Path, changes: int, first: int) -> bool:
    """Read sound files of every format, findings, and so many changed files, without coverage and libFuzzer.

    A line names each input before it is read; another line describes its problem.  Return whether there is a problem.
    Changes are numbered from ``first``; a number repeats its change.
    """
    from support.hostile.frames import changed, split
    from support.hostile.targets import TARGETS

    failed = False
    with TemporaryDirectory() as scratch:
        for target, make in TARGETS.items():
            made = make(Path(scratch))
            inputs = {f"sound {number}": seed for number, seed in enumerate(made.seeds)}
            kept = sorted((findings / folder_of(target)).glob("*"))
            inputs |= {f"found {path.name}": path.read_bytes() for path in kept}
            for seed in range(first, first + (changes // _PASS_TIMES if made.deletes else changes)):
                inputs[f"changed {seed}"] = changed(
                    made.seeds[seed % len(made.seeds)], 2**20, seed, _changed_byte(seed)
                )
            for name, data in inputs.items():
                print(f"{target}: {name}", flush=True)
                valid, problem = unnamed(made.read, made.named, data)
                if name.startswith("sound"):
                    parts, join = split(data)
                    problem = problem or ("" if valid else "it is refused")
                    problem = problem or ("" if join(parts) == data else "its parts make another file")
                if problem:
                    print(f"PROBLEM {problem}", flush=True)
                    failed = True
    return failed


def _changed_byte(seed: int) -> Callable[[bytes, int], bytes]:
    """A change that replaces libFuzzer's changes."""

    def change(data: bytes, most: int) -> bytes:
        at, value = seed * 7919 % (len(data) + 1), seed * 31 % 256
        return data[:at] if seed % 11 == 10 else data[:at] + bytes([value]) + data[at + seed % 3 :]

    return change


def _forget_mended(findings: Path, problem_of: Callable[[bytes], str]) -> None:
    for path in findings.glob("*.txt"):
        kept = path.with_suffix(".bin")
        if not problem_of(kept.read_bytes()):
            path.unlink()
            kept.unlink()


# The process that starts the fuzzing processes and reports.


@dataclass
class Outcome:
    """The results of fuzzing a format."""

    target: str
    inputs: int = 0
    answers: int = 0
    errors: int = 0
    slowest_s: float = 0
    edges: int = 0
    seconds: float = 0
    findings: list[str] = field(default_factory=list)


def fuzz(target: str, folder: Path, *, seconds: float | None, runs: int | None) -> Outcome:
    """Fuzz a format for that time, or with so many inputs; restart after a crash."""
    for name in ("corpus", "findings", "artifacts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    before = Counters(folder / "counters").values[0]
    begin, edges = time.monotonic(), 0
    for _ in range(_MOST_RESTARTS):
        tried = Counters(folder / "counters").values[0] - before
        left_s = None if seconds is None else seconds - (time.monotonic() - begin)
        if (left_s is not None and left_s < 1) or (runs is not None and tried >= runs):
            break
        limit = [f"-max_total_time={int(left_s)}"] if left_s is not None else []
        limit += [f"-atheris_runs={runs - tried}"] if runs is not None else []
        code, found = _run(target, folder, limit)
        edges = max(edges, found)
        if code == 0:
            break
    inputs, answers, errors, slowest = Counters(folder / "counters").values
    findings = sorted(path.read_text().strip() for path in (folder / "findings").glob("*.txt"))
    findings += sorted(f"{path.name} ended the process" for path in (folder / "artifacts").iterdir())
    seconds = time.monotonic() - begin
    return Outcome(target, inputs, answers, errors, slowest / 1e6, edges, seconds, findings)


def _run(target: str, folder: Path, limit: Sequence[str]) -> tuple[int, int]:
    """Run a fuzzing process; return its exit code and how many edges of the code its inputs reached."""
    options = [
        *limit,
        f"-timeout={MOST_SECONDS}",
        "-rss_limit_mb=0",
        "-mutate_depth=2",
        f"-artifact_prefix={folder}/artifacts/",
    ]
    environment = {
        **os.environ,
        "ICEKEEPER_MAX_UNPACKED_MB": str(_UNPACKED_MB),
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools reserve address space
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "support.hostile.fuzz", "--child", "--folder", str(folder), target, "--", *options]
    with (folder / "log").open("w") as log:
        code = subprocess.run(words, env=environment, stdout=log, stderr=log, check=False).returncode
    seen = re.findall(rb"cov: (\d+)", (folder / "log").read_bytes())
    return code, max(map(int, seen), default=0)


def folder_of(target: str) -> str:
    return re.sub(r"\W+", "-", target).lower()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, help="of all formats together")
    parser.add_argument("--runs", type=int, help="inputs of each format")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--again", type=Path, help="only read this folder of findings, and changed files")
    parser.add_argument("--changes", type=int, default=100, help="how many files of each format, with --again")
    parser.add_argument("--first", type=int, default=0, help="the number of the first change, with --again")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    own, options = list(arguments), []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    if given.child:
        _fuzz(given.targets[0], given.folder, options)
        return 0
    if given.again is not None:
        return int(try_again(given.again, given.changes, given.first))
    from support.hostile.targets import TARGETS

    wanted = given.targets or list(TARGETS)
    seconds = given.seconds if given.seconds or given.runs else 600
    failed = False
    for target in wanted:
        folder = given.folder.resolve() / folder_of(target)
        outcome = fuzz(target, folder, seconds=seconds and seconds / len(wanted), runs=given.runs)
        print(
            f"{target}: {outcome.inputs:,} inputs, {outcome.answers:,} read, {outcome.errors:,} refused by name, "
            f"{outcome.edges:,} edges, slowest {outcome.slowest_s:.2f} s, {outcome.seconds:.0f} s",
            flush=True,
        )
        for problem in outcome.findings:
            print(f"  FOUND {problem}", flush=True)
        failed |= bool(outcome.findings)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
