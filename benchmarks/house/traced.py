"""Runs the ``icekeeper`` command in this process and notes the functions that it calls.

``python -m benchmarks.house.traced OUTPUT ARGUMENT...``.  Functions that worker processes call are not noted.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing.process
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_POLICIES = {"Policy", "ResolvedPolicy"}
_PLANNER = "plan_compaction"


class CalledFiles:
    """A profile function that notes each call of a function defined below a folder.

    Bodies of modules and classes are no functions.  A lambda or comprehension of such a body counts as little.
    """

    def __init__(self, source: Path) -> None:
        self.files: set[str] = set()
        self.deepest: list[str] = []
        """The functions of the folder on the stack when it was deepest, the outermost first."""
        self.with_policy: set[str] = set()
        """Files of which a function had a policy as an argument, until the planner was called."""
        self.with_catalog: set[str] = set()
        self.planned = False
        self._prefix = f"{source}/"
        self._ours: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._counts(frame):
            return
        code = frame.f_code
        self.files.add(code.co_filename)
        stack = self._stack(frame)
        if len(stack) > len(self.deepest):
            self.deepest = [f"{one.f_code.co_filename}:{one.f_code.co_qualname}" for one in reversed(stack)]
        self.planned |= code.co_name == _PLANNER
        if not self.planned:
            self._note_arguments(frame)

    def _counts(self, frame: FrameType) -> bool:
        """Whether this is a function of the folder."""
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_filename.startswith(self._prefix)
            self._ours[code] = ours
        if not ours or not code.co_name.startswith("<"):
            return ours
        return frame.f_back is not None and bool(frame.f_back.f_code.co_flags & inspect.CO_OPTIMIZED)

    def _stack(self, frame: FrameType | None) -> list[FrameType]:
        """The functions of the folder on the stack of this thread, the innermost first."""
        found = []
        while frame is not None:
            if self._counts(frame):
                found.append(frame)
            frame = frame.f_back
        return found

    def _note_arguments(self, frame: FrameType) -> None:
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            kinds = set(_kinds_in(frame.f_locals.get(name)))
            if kinds & _POLICIES:
                self.with_policy.add(code.co_filename)
            if any(kind.endswith("Catalog") for kind in kinds):
                self.with_catalog.add(code.co_filename)


def _kinds_in(value: object) -> Iterator[str]:
    """The names of the types of a value and of its attributes."""
    yield type(value).__name__
    for kind in type(value).__mro__:
        for name in kind.__dict__.get("__slots__", ()):
            yield type(getattr(value, name, None)).__name__
    # A copy: another thread may set an attribute meanwhile.
    yield from (type(one).__name__ for one in list(getattr(value, "__dict__", {}).values()))


def trace(output: Path, arguments: list[str]) -> int:
    """Run the command; write what was called to ``output``, and return the command's exit code."""
    import icekeeper

    called = CalledFiles(Path(icekeeper.__path__[0]))
    threading.setprofile(called)
    sys.setprofile(called)
    try:
        from icekeeper.cli import main

        code = main(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    figures = {
        "files": sorted(called.files),
        "deepest": called.deepest,
        "planned": called.planned,
        "with_policy": sorted(called.with_policy),
        "with_catalog": sorted(called.with_catalog),
        "processes": next(multiprocessing.process._process_counter) - 1,  # type: ignore[attr-defined]
    }
    output.write_text(json.dumps(figures))
    return code


if __name__ == "__main__":
    sys.exit(trace(Path(sys.argv[1]), sys.argv[2:]))
