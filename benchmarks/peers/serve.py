"""A contestant's side of a run: prepare what does not count, wait for the word, work, answer.

Requests and answers are lines of JSON on standard input and output, one task after the other until input ends.  What
libraries print goes to standard error.  Nothing but the standard library is imported: peers have other environments.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Task = dict[str, Any]
"""What to do: ``operation``, ``metadata_location``, ``table_folder``, ``scratch`` and options of the operation."""
Answer = dict[str, Any]
"""What came of it: ``metadata_location`` of the table, or ``files`` that hold its rows, and counters."""
Prepare = Callable[[Task], Callable[[], Answer]]
"""Does what is not measured; the function that it returns is measured."""


def serve(prepare: Prepare) -> None:
    """Answer tasks until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say({"started": True})
    for line in sys.stdin:
        try:
            work = prepare(json.loads(line))
            say({"ready": True})
            if not sys.stdin.readline():
                return
            say(work())
        except Exception as error:
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"})
