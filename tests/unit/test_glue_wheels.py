"""What a Glue job installs: pinned, of the documented form, and told to the job as Glue wants it."""

from __future__ import annotations

import os
import sys
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from artifacts.glue_wheels import REQUIREMENTS, pack, platform_tags, zip_name
from artifacts.pins import CONSTRAINTS, GLUE_PACKAGES, NEWER_THAN_GLUE, ROOT, normalized, pins_for_glue, read_pins
from icekeeper.operation_facts import operations_of_job
from icekeeper.pipeline.glue_job import run_job
from support.source_tree import imported
from support.stack_template import JOBS, PARAMETERS

LINUX = {"python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux", "platform_system": "Linux"}


def of_glue() -> dict[str, str]:
    return pins_for_glue(read_pins(CONSTRAINTS), read_pins(GLUE_PACKAGES))


def wheel(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def needed(name: str) -> list[Requirement]:
    """What a package asks for on Glue, by the metadata of the version that is installed here."""
    told = [Requirement(line) for line in requires(name) or ()]
    extras = ("", "sql-sqlite") if name == "pyiceberg" else ("",)
    return [
        one for one in told if any(one.marker is None or one.marker.evaluate({**LINUX, "extra": e}) for e in extras)
    ]


class TestPins:
    def test_glues_own_version_stays_where_it_is_not_too_old(self) -> None:
        ours = {"boto3": "2", "pyarrow": "26", "mmh3": "5"}
        glues = {"boto3": "1", "pyarrow": "22", "pandas": "3"}
        assert pins_for_glue(ours, glues) == {"boto3": "1", "pyarrow": "26", "mmh3": "5"}

    def test_what_is_replaced_would_else_be_too_old(self) -> None:
        ours, glues = read_pins(CONSTRAINTS), read_pins(GLUE_PACKAGES)
        everything = [*needed("icekeeper"), *needed("pydantic")]
        asked = {name: [one for one in everything if normalized(one.name) == name] for name in NEWER_THAN_GLUE}
        for name, found in asked.items():
            assert any(glues[name] not in one.specifier for one in found), f"Glue's {name} would do"
            assert all(ours[name] in one.specifier for one in found)

    def test_every_package_gets_what_it_asks_for(self) -> None:
        """uv says so too when the zip is built; here it is known before, and without a network."""
        pins, seen, ahead = of_glue(), {"icekeeper"}, ["icekeeper"]
        while ahead:
            name = ahead.pop()
            for one in needed(name):
                found = normalized(one.name)
                assert pins[found] in one.specifier, f"{name} needs {one}, on Glue is {pins[found]}"
                # Others of Glue's own fit each other; their metadata are not at hand.
                if found not in seen and pins[found] == read_pins(CONSTRAINTS)[found]:
                    seen.add(found)
                    ahead.append(found)
        assert {"pyarrow", "pyiceberg", "pydantic-core", "sqlalchemy", "thrift"} <= seen


class TestZip:
    def test_is_of_the_form_that_glue_documents(self, tmp_path: Path) -> None:
        packed = pack([wheel(tmp_path / "a", "b-2-py3-none-any.whl", b"b")], {"b": "2"}, tmp_path / zip_name())
        assert packed.name.endswith(".gluewheels.zip")
        with zipfile.ZipFile(packed) as archive:
            assert archive.namelist() == ["wheels/requirements.txt", "wheels/b-2-py3-none-any.whl"]
            assert archive.read(REQUIREMENTS) == b"b==2\n"

    def test_same_wheels_give_the_same_bytes(self, tmp_path: Path) -> None:
        packed = []
        for number, folder in enumerate((tmp_path / "a", tmp_path / "b")):
            files = [wheel(folder, f"{name}-1-py3-none-any.whl", name.encode()) for name in ("x", "y")]
            for path in files:
                os.utime(path, (number, number))
                path.chmod(0o600 if number else 0o644)
            files = files[::-1] if number else files
            pins = dict([("y", "1"), ("x", "1")] if number else [("x", "1"), ("y", "1")])
            packed.append(pack(files, pins, folder / "packed.zip").read_bytes())
        assert packed[0] == packed[1]

    def test_wheels_are_for_the_linux_of_glue(self) -> None:
        """glibc 2.34 is there; PyArrow's wheels need 2.28."""
        assert platform_tags()[0] == "manylinux_2_28_x86_64"
        assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(platform_tags())


class TestJobs:
    def test_install_it_and_nothing_from_elsewhere(self) -> None:
        """(rule 149)"""
        assert PARAMETERS["GlueWheelsName"]["Default"] == zip_name()
        for script, (_, job) in JOBS.items():
            arguments = job["DefaultArguments"]
            wheels = {"Fn::Sub": "${ArtifactLocation}/${GlueWheelsName}"}
            assert arguments["--additional-python-modules"] == wheels, script
            assert arguments["--python-modules-installer-option"] == "--no-index", script

    def test_bear_the_arguments_that_glue_adds(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """One of them has a value that looks like an option."""
        ours = {"plan-key": "runs/r/plan.json", "plan-digest": "0", "operation": "compact", "run-id": "r"}
        ours |= {"control-bucket": str(tmp_path), "state": str(tmp_path / "state.db")}
        words = [word for name, value in ours.items() for word in (f"--{name}", value)]
        of_glue = ["--python-modules-installer-option", "--no-index", "--JOB_NAME", "j", "--enable-metrics", "true"]
        assert run_job([*of_glue, *words], operations_of_job("compact_data_files")) == 1
        assert "runs/r/plan.json" in caplog.text


def test_what_builds_needs_nothing_but_the_standard_library() -> None:
    """Its environment has pip, uv and hatchling only."""
    allowed = {*sys.stdlib_module_names, "artifacts"}
    sources = sorted((ROOT / "artifacts").glob("*.py"))
    assert sources
    assert {module for path in sources for module, _ in imported(path) if module.split(".")[0] not in allowed} == set()
