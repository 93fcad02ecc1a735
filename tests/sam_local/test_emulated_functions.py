"""The functions as Lambda runs them: SAM CLI's emulator, AWS's runtime client, the built layer, read-only, not root."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from local_stack.stack import ROOT, LocalStack
from support.emulated_functions import EmulatedFunction, emulated, why_not_here
from support.rights_fleet import PARAMETERS
from support.sam_environment import USER, as_sam_resolves
from support.sent_events import NeedyTable, SentEvents
from support.stack_template import FUNCTIONS, render

TRIES = """
import multiprocessing, os, sys

def tried(work):
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"

def handle(event, context):
    places = ("/var/task", "/opt", "/var/runtime", "/", "/home", "/tmp")
    return {
        "written": {place: tried(lambda: open(f"{place}/file", "w")) for place in places},
        "semaphore": tried(multiprocessing.Lock),
        "process": tried(lambda: os.kill(1, 0)),
        "user": os.getuid(),
        "home": [os.environ.get("HOME"), os.path.isdir(os.path.expanduser("~"))],
        "memory": context.memory_limit_in_mb,
        "path": sys.path[:3],
    }
"""


@pytest.fixture(autouse=True)
def possible() -> None:
    if (reason := why_not_here()) is not None:
        pytest.skip(reason)


def test_a_function_finds_what_lambda_has_and_no_more(lambda_root: Path, tmp_path: Path) -> None:
    """Source: AWS Lambda developer guide, "Understanding the Lambda execution environment lifecycle" and "Parallel
    processing in Python with AWS Lambda" (no ``/dev/shm``)."""
    code, layer = tmp_path / "code", tmp_path / "layer"
    for folder in (code, layer):
        folder.mkdir()
    tmp_path.chmod(0o755)
    (code / "tries.py").write_text(TRIES)
    environment = {"AWS_LAMBDA_FUNCTION_HANDLER": "tries.handle", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512"}

    with emulated(lambda_root, code, layer, environment) as function:
        found = function.invoke({})

    refused = dict.fromkeys(("/var/task", "/opt", "/var/runtime", "/", "/home"), "OSError")
    assert found["written"] == {**refused, "/tmp": "done"}
    assert (found["semaphore"], found["user"], found["home"]) == ("FileNotFoundError", USER, [None, False])
    assert int(found["memory"]) == 512
    assert found["path"] == ["/var/task", "/opt/python/lib/python3.12/site-packages", "/opt/python"]
    assert list(code.iterdir()) == [code / "tries.py"]


def test_every_event_in_a_root_like_lambdas(
    lambda_root: Path, built_layer: Path, whole_stack: LocalStack, tmp_path: Path
) -> None:
    table = NeedyTable(whole_stack, tmp_path)
    environments = as_sam_resolves(whole_stack, table.catalog, tmp_path)
    functions: dict[str, EmulatedFunction] = {}
    with ExitStack() as ending:

        def call(role: str, event: Any) -> Any:
            if role not in functions:
                started = emulated(lambda_root, ROOT / "functions", built_layer, environments[role])
                functions[role] = ending.enter_context(started)
            return functions[role].invoke(event)

        answers = SentEvents(whole_stack, call).all(table.name, table.catalog)
        peaks_mb = {role: function.peak_mb for role, function in functions.items()}

    table.has_had_its_pass(answers)
    described = render(PARAMETERS).of_type("AWS::Serverless::Function")
    room_mb = {role: int(described[logical_id]["MemorySize"]) for role, (logical_id, _) in FUNCTIONS.items()}
    assert set(peaks_mb) == set(FUNCTIONS)
    assert [role for role, peak in peaks_mb.items() if peak > 0.75 * room_mb[role]] == []
