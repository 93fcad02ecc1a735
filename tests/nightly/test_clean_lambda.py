"""A whole run of the stack's functions in Python 3.12 with only the layer and the runtime's boto3."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from artifacts import layer, wheel
from artifacts.installers import find_python
from artifacts.locks import LAYER_PYTHON
from artifacts.pins import CONSTRAINTS, ROOT, read_pins
from local_stack.moto_server import MotoServer
from local_stack.stack import deployed
from support.clean_pythons import BucketLake, LambdaPython

pytestmark = pytest.mark.xdist_group("clean Lambda")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> LambdaPython:
    interpreter = find_python(LAYER_PYTHON) or pytest.skip(f"there is no Python {LAYER_PYTHON} here")
    folder = tmp_path_factory.mktemp("lambda")
    layer.build(wheel.build(folder), folder / "layer", "x86_64")
    return LambdaPython(interpreter, folder / "layer", folder / "runtime")


def test_the_layer_runs_a_pass(runtime: LambdaPython, moto_server: MotoServer, table_bucket: dict[str, str]) -> None:
    answers: dict[str, Any] = {}
    with deployed(moto_server, parameters={"Catalogs": "lake", "SmallCompactionMb": "1280"}) as stack:
        lake = BucketLake(stack, table_bucket)
        before = lake.rows()

        def call(role: str, event: Any) -> Any:
            answer = answers[event["step"]] = runtime.call(role, event, stack.functions[role].environment)
            return answer["result"]

        stack.stand_in({role: partial(call, role) for role in stack.functions}, {})
        execution = stack.run({"table": "ns.t"}, timeout_s=300)
        assert execution.output["report"]["status"] == "succeeded", execution.output
        assert lake.data_files() == 1
        assert lake.rows() == before
    assert {"detect", "plan", "compact", "expire_snapshots", "report"} <= set(answers)
    for step, answer in answers.items():
        assert answer["boto3"] == read_pins(CONSTRAINTS)["boto3"], step
        assert strangers(answer, runtime) == [], step


def strangers(answer: Any, runtime: LambdaPython) -> list[str]:
    """Imported files that are neither ours nor the standard library's."""
    ours = (str(runtime.layer), str(ROOT / "functions"), answer["library"])
    return [file for file in answer["files"] if file and not file.startswith(ours)]
