"""What SAM CLI gives a function of a local stack as its environment, and where its emulator of the runtime is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from local_stack.stack import ROOT, LocalStack
from local_stack.template import REGION, TEMPLATE
from support.lambda_functions import sample
from support.rights_fleet import PARAMETERS
from support.stack_template import FUNCTIONS


def sam_cli() -> Path:
    """The command of SAM CLI, as ``make`` names it."""
    return Path(os.environ["SAM_CLI"])


def emulators() -> Path:
    """Where SAM CLI has its emulators, one for each processor."""
    (found,) = sam_cli().resolve().parent.parent.glob("lib/python*/site-packages/samcli/local/rapid")
    return found


def variables_of(stack: LocalStack, catalogs: str) -> dict[str, dict[str, str]]:
    """What ``--env-vars`` is given, as events/README.md says it: the stack's own names."""
    bucket, state = stack.template.name("ControlBucket"), stack.template.name("StateTable")
    samples = sample("environment")["Parameters"]
    named = {name: text.replace("my-control-bucket", bucket) for name, text in samples.items()}
    more = {"ICEKEEPER_STATE": f"dynamodb://{state}?region={REGION}", "ICEKEEPER_CATALOGS": catalogs}
    return {"Parameters": {**named, **more, "ICEKEEPER_TABLE_BUCKETS": ""}}


def as_sam_resolves(stack: LocalStack, catalogs: str, folder: Path) -> Mapping[str, Mapping[str, str]]:
    """By role: the variables of each function, with the keys of its own role, and where AWS is here.

    Raises:
        AssertionError: SAM CLI does not read the template.
    """
    given = folder / "environment.json"
    given.write_text(json.dumps(variables_of(stack, catalogs)))
    script = ROOT / "tests" / "sam" / "as_sam_sees_it.py"
    command = [str(sam_cli().parent / "python"), str(script), str(TEMPLATE), str(given), json.dumps(PARAMETERS)]
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": REGION}
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    resolved = json.loads(told.stdout)["environments"]
    return {role: {**resolved[logical_id], **_of_aws(stack, role)} for role, (logical_id, _) in FUNCTIONS.items()}


def keys_of(stack: LocalStack, role: str) -> dict[str, str]:
    """The keys of a function's own role, as Lambda puts them into its environment."""
    told = stack.keys.answer(role)
    names = {
        "AWS_ACCESS_KEY_ID": "AccessKeyId",
        "AWS_SECRET_ACCESS_KEY": "SecretAccessKey",
        "AWS_SESSION_TOKEN": "Token",
    }
    return {variable: told[name] for variable, name in names.items()}


def _of_aws(stack: LocalStack, role: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": stack.moto.endpoint, **keys_of(stack, role)}
