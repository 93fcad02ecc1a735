"""Functions and jobs of a local stack have no keys of their own: they ask for those of their role, as on AWS."""

from __future__ import annotations

import json
import os
from pathlib import Path

import boto3
import pytest

from local_stack.credential_server import KEY_VARIABLES
from local_stack.moto_server import MotoServer
from local_stack.stack import deployed

TOY = Path(__file__).parent / "toy" / "template.yaml"


def test_each_function_and_job_asks_for_the_keys_of_its_own_role(
    moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEY_VARIABLES:  # whoever runs the tests may have some
        monkeypatch.setenv(name, "of-a-person")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # which another test may have used
    with deployed(moto_server, path=TOY) as stack:
        functions = [function.environment for function in stack.functions.values()]
        everybody = [dict(os.environ), *functions, *(job.environment for job in stack.jobs.values())]
        assert [set(KEY_VARIABLES) & set(variables) for variables in everybody] == [set() for _ in everybody]
        stack.put_control("items.json", json.dumps([{"way": "good"}, {"way": "job", "how": "well"}]))
        assert stack.run({"who": "the machine"}).status == "SUCCEEDED"
        assert set(stack.keys.roles.values()) >= {"work", "job-count"}
    assert os.environ["AWS_ACCESS_KEY_ID"] == "of-a-person"
