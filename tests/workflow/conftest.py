"""One worker runs the workflows: its moto and engine take longer to start than most of these tests take to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.pipeline import glue_job
from local_stack.functions import wait_for_calls
from local_stack.moto_server import MotoServer
from local_stack.pace import PACE
from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack, deployed
from local_stack.template import ACCOUNT, REGION
from support.rights_fleet import PARAMETERS, RightsFleet
from support.scripted_pipeline import ScriptedPipeline

# Rights to the table buckets of all tests; each test sets the buckets that the functions read.
LAKES = {
    "TableBucketArns": f"arn:aws:s3tables:{REGION}:{ACCOUNT}:bucket/lake-*",
    "SmallCompactionMb": "1280",  # in functions, because Glue jobs take a process and Spark
}

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.xdist_group("workflow"))


@pytest.fixture(autouse=True)
def functions_end_with_their_test() -> Iterator[None]:
    """Otherwise a function beyond its time limit would replace the standard output of the next test."""
    yield
    wait_for_calls()


@pytest.fixture(autouse=True)
def no_call_is_denied() -> Iterator[None]:
    """Every call of every workflow is allowed to its role (rule: least-privilege-roles); a test that expects a denial
    empties the list."""
    DENIED.clear()
    yield
    wait_for_calls()
    assert [str(entry) for entry in DENIED] == []


@pytest.fixture(scope="session")
def scripted_stack(moto_server: MotoServer) -> Iterator[LocalStack]:
    """The real template and state machine; every test brings stand-ins for functions and jobs."""
    with deployed(moto_server, parameters=LAKES, environment={"ICEKEEPER_TABLE_BUCKETS": ""}) as stack:
        yield stack


@pytest.fixture
def script(scripted_stack: LocalStack) -> Iterator[ScriptedPipeline]:
    """Stand-ins for all functions and jobs of the stack, new for every test."""
    bucket = scripted_stack.template.name("ControlBucket")
    s3 = scripted_stack.moto.client("s3")
    script = ScriptedPipeline(lambda key, body: s3.put_object(Bucket=bucket, Key=key, Body=body), bucket)
    scripted_stack.stand_in(script.functions, script.jobs)
    PACE.forget()
    yield script
    scripted_stack.stand_in({}, {})


@pytest.fixture
def fleet(
    moto_server: MotoServer, own_account: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RightsFleet]:
    """A deployment whose jobs run in this process, with tables that need every right."""
    monkeypatch.setattr(glue_job, "open_engine", lambda name: nullcontext(LocalEngine(1)))
    with deployed(moto_server, parameters=PARAMETERS) as stack:
        yield RightsFleet(stack, tmp_path)
