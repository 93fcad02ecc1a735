"""``sam local invoke`` itself, as events/README.md says it: every event into its function, in a container."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from local_stack.stack import ROOT, LocalStack
from local_stack.template import REGION, TEMPLATE
from support.lambda_image import gateway, image_of, reachable_at, why_no_engine
from support.sam_environment import keys_of, sam_cli, variables_of
from support.sent_events import NeedyTable, SentEvents
from support.stack_template import FUNCTIONS


def test_every_event_by_sam_local_invoke(
    lambda_root: Path, built_layer: Path, whole_stack: LocalStack, tmp_path: Path
) -> None:
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)
    table = NeedyTable(whole_stack, tmp_path)
    given = tmp_path / "environment.json"
    given.write_text(json.dumps(variables_of(whole_stack, "glue")))
    with (
        reachable_at(gateway(), whole_stack.moto.endpoint) as endpoint,
        image_of(lambda_root, {"AWS_ENDPOINT_URL": endpoint}) as image,
    ):

        def call(role: str, event: Any) -> Any:
            sent = tmp_path / "event.json"
            sent.write_text(json.dumps(event))
            command = [str(sam_cli()), "local", "invoke", FUNCTIONS[role][0], "--event", str(sent)]
            command += ["--env-vars", str(given), "--template", str(TEMPLATE), "--region", REGION]
            command += ["--invoke-image", image, "--skip-pull-image", "--layer-cache-basedir", str(tmp_path / "layers")]
            keys = {**os.environ, **keys_of(whole_stack, role), "SAM_CLI_TELEMETRY": "0"}
            told = subprocess.run(command, cwd=ROOT, env=keys, capture_output=True, text=True, timeout=600)
            assert told.returncode == 0, told.stderr
            answer = json.loads(told.stdout)
            assert not (isinstance(answer, dict) and "errorType" in answer), f"{told.stdout}\n{told.stderr}"
            return answer

        answers = SentEvents(whole_stack, call).all(table.name, table.catalog)
    table.has_had_its_pass(answers)
