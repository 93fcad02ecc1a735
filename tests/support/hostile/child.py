"""Tries hostile bytes in a child process with little memory and little time.

Run as a module (``python -m support.hostile.child FOLDER FAMILY``), it is the child: it makes the bytes of a family,
limits its memory to 512 MB above the current size, and prints a line of JSON about the end of each case.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from support.hostile import parsers

Group = Callable[[Path], tuple[Callable[[bytes], object], parsers.Cases]]
"""Makes a parser, which may use a folder, and its input by the name of the case."""


def fuzzed(formats: Mapping[str, Callable[[], parsers.Cases]]) -> Mapping[str, Group]:
    """The cases of formats whose readers ``targets`` has."""

    def made(name: str, folder: Path) -> tuple[Callable[[bytes], object], parsers.Cases]:
        from support.hostile.targets import TARGETS  # a second of imports, which settings do not need

        return TARGETS[name](folder).read, formats[name]()

    return {name: partial(made, name) for name in formats}


FAMILIES: Mapping[str, Mapping[str, Group]] = {
    "metadata": {
        "metadata.json": parsers.metadata_json,
        **fuzzed(
            {
                "manifest list": parsers.manifest_list,
                "manifest": parsers.manifest,
                "Puffin footer": parsers.puffin_footer,
                "deletion vector": parsers.deletion_vector,
                "sketch": parsers.sketch,
            }
        ),
    },
    "rows": fuzzed(
        {
            "Avro rows": parsers.avro_rows,
            "Parquet rows": parsers.parquet_rows,
            "Parquet footer": parsers.parquet_footer,
            "ORC rows": parsers.orc_rows,
        }
    ),
    "settings": {
        "policy file": parsers.policy_file,
        "inventory": parsers.inventory,
        "S3 Inventory": parsers.inventory_manifest,
        "control document": parsers.control_document,
        "state item": parsers.state_item,
        "state file": parsers.state_file,
    },
}
"""Groups of cases that share a child."""

MOST_BYTES = 512 * 1024 * 1024
MOST_SECONDS = 10
MAX_UNPACKED_MB = 64
"""The default of a process with that memory."""
TESTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a case ended."""

    group: str
    case: str
    error: str
    """The class of the error; empty if there is none."""
    message: str
    seconds: float
    """Processor time, which does not depend on other work of the machine."""


def tried(family: str, folder: Path) -> list[Ended]:
    """All cases of a family, as a child reports them; a child that is killed reports no further case."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
        "ICEKEEPER_MAX_UNPACKED_MB": str(MAX_UNPACKED_MB),
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools reserve address space
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "support.hostile.child", str(folder), family]
    child = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    ended = [Ended(**json.loads(line)) for line in child.stdout.splitlines()]
    if child.returncode:
        ended.append(Ended(family, "the next one", f"exit {child.returncode}", child.stderr[-2000:], 0))
    return ended


def _child(folder: Path, family: str) -> None:
    made: list[tuple[str, str, Callable[[bytes], object], bytes]] = []
    for group, make in FAMILIES[family].items():
        parse, cases = make(folder)
        made += ((group, case, parse, data()) for case, data in cases.items())
        with suppress(Exception):
            parse(b"")  # the first call imports modules
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, taken + MOST_BYTES))
    for group, case, parse, data in made:
        # No code handles the timer's signal, so it ends the process at once.
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        begin, error, message = time.process_time(), "", ""
        try:
            parse(data)
        except BaseException as raised:
            error, message = type(raised).__name__, str(raised)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(asdict(Ended(group, case, error, message, time.process_time() - begin))), flush=True)


if __name__ == "__main__":
    _child(Path(sys.argv[1]), sys.argv[2])
