"""Why the state machine calls functions without versions: SAM would publish none for another value of a parameter."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from local_stack.stack import ROOT
from local_stack.template import TEMPLATE
from support.stack_template import FUNCTIONS

SAM = Path(os.environ["SAM_CLI"])


def test_a_parameter_alone_publishes_no_version() -> None:
    """When this fails, SAM has mended it (aws/serverless-application-model, issue 3820): see "Upgrading" in
    docs/deployment.md."""
    before = {"ArtifactLocation": "s3://artifacts/1", "MaxConcurrentTables": "4", "CompactSmallMemoryMb": "3008"}
    after = {**before, "MaxConcurrentTables": "5", "CompactSmallMemoryMb": "4096"}  # of every function, of two
    script = [str(SAM.parent / "python"), str(Path(__file__).parent / "versions_by_sam.py")]
    command = [*script, str(TEMPLATE), json.dumps(before), json.dumps(after)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    first, second = json.loads(told.stdout)

    assert len(first) == len(FUNCTIONS)
    assert first == second
