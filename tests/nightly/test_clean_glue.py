"""The zip of wheels installs into a Python with only the packages of AWS Glue 5.1, and a job runs there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyspark
import pytest
from packaging.utils import parse_wheel_filename

from artifacts import glue_wheels, wheel
from artifacts.glue_wheels import REQUIREMENTS
from artifacts.installers import find_python, uv
from artifacts.locks import GLUE_PYTHON
from artifacts.pins import CONSTRAINTS, GLUE_PACKAGES, NEWER_THAN_GLUE, read_pins, version
from icekeeper.engines.spark import find_java_home
from local_stack.moto_server import MotoServer
from local_stack.stack import deployed
from support.clean_pythons import BucketLake, glue_python, install_as_glue_does, installed

pytestmark = pytest.mark.xdist_group("clean Glue")


@pytest.fixture(scope="module")
def interpreter() -> str:
    return find_python(GLUE_PYTHON) or pytest.skip(f"there is no Python {GLUE_PYTHON} here")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    return glue_wheels.build(wheel.build(folder), folder)


@pytest.fixture(scope="module")
def glue(packed: Path, interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Glue's Python after it has installed the zip."""
    python = glue_python(tmp_path_factory.mktemp("glue") / "venv", interpreter)
    assert installed(python) == read_pins(GLUE_PACKAGES)
    install_as_glue_does(python, packed)
    return python


def test_the_zip_holds_a_wheel_of_every_pin_and_no_other(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        (tmp_path / "requirements.txt").write_bytes(archive.read(REQUIREMENTS))
    wheels = [parse_wheel_filename(name.removeprefix("wheels/")) for name in names if name != REQUIREMENTS]
    pins = read_pins(tmp_path / "requirements.txt")
    assert {str(name): str(pinned) for name, pinned, _, _ in wheels} == pins
    assert len(wheels) == len(pins)
    ours, glues = read_pins(CONSTRAINTS), read_pins(GLUE_PACKAGES)
    assert pins.pop("icekeeper") == version()
    for name, pinned in pins.items():
        assert pinned == (ours if name in NEWER_THAN_GLUE else {**ours, **glues})[name], name


def test_the_zip_replaces_only_packages_that_are_too_old(glue: Path) -> None:
    before, after = read_pins(GLUE_PACKAGES), installed(glue)
    assert {name for name, pinned in before.items() if after[name] != pinned} == set(NEWER_THAN_GLUE)
    assert uv("pip", "check", "--quiet", "--python", str(glue)) == ""


def test_a_job_runs_with_the_installed_zip(glue: Path, moto_server: MotoServer, table_bucket: dict[str, str]) -> None:
    """As in Glue, spark-submit of Spark 3.5.6 runs the script, and the package comes from the zip only."""
    spark = Path(pyspark.__file__).parent
    of_glue = {"SPARK_HOME": str(spark), "PYSPARK_PYTHON": str(glue), "JAVA_HOME": find_java_home(), "PYTHONPATH": ""}
    with deployed(moto_server, parameters={"SmallCompactionMb": "0", "Catalogs": "lake"}) as stack:
        lake = BucketLake(stack, table_bucket)
        before = lake.rows()
        job = stack.jobs["compact_data_files"]
        job.environment.update(of_glue)
        job.command = (str(spark / "bin" / "spark-submit"), "--master", "local[2]")
        execution = stack.run({"table": "ns.t", "operations": "compact"}, timeout_s=300)
        (run,) = job.runs
        assert run.state == "SUCCEEDED", run.log
        assert execution.child.output["status"] == "succeeded", execution.child.output
        assert lake.data_files() == 1
        assert lake.rows() == before
