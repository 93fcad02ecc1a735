"""Deployed artifacts: locked packages, Glue wheels, and the functions' layer."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from artifacts import glue_wheels, layer, wheel
from artifacts.glue_wheels import REQUIREMENTS, zip_name
from artifacts.locks import BUILD_LOCK, GLUE_LOCK, GLUE_PYTHON, LAYER_LOCK, LAYER_PYTHON, LOCKS, SUPPLY_LOCK
from artifacts.pins import (
    CONSTRAINTS,
    GLUE_PACKAGES,
    GLUE_VERSION,
    ROOT,
    SECURITY_RELEASES,
    normalized,
    pins_for_glue,
    read_pins,
    version,
)
from artifacts.release import CHECKSUMS, write_checksums, zip_folder
from artifacts.supply_chain import complaints
from icekeeper.pipeline.glue_job import run_job
from local_stack.template import load_template
from support.source_tree import imported
from support.stack_template import JOBS

# The packages of Glue jobs.


class TestPins:
    def test_a_version_that_glue_has_is_kept_unless_it_is_too_old(self) -> None:
        ours = {"boto3": "2", "pyarrow": "26", "mmh3": "5"}
        glues = {"boto3": "1", "pyarrow": "22", "pandas": "3"}
        assert pins_for_glue(ours, glues) == {"boto3": "1", "pyarrow": "26", "mmh3": "5"}

    @pytest.mark.parametrize(("name", "least"), SECURITY_RELEASES.items())
    def test_every_lock_replaces_versions_with_known_vulnerabilities(self, name: str, least: str) -> None:
        assert Version(read_pins(GLUE_PACKAGES)[name]) < Version(least), f"Glue's {name} would do"
        assert [lock.name for lock in LOCKS if Version(read_pins(lock).get(name, least)) < Version(least)] == []


class TestJobs:
    def test_jobs_install_only_the_packed_wheels(self) -> None:
        """A deployment runs only the packages that are packed for it, installed by hash
        (rule: deploy-pinned-packages)."""
        for script, (_, job) in JOBS.items():
            arguments = job["DefaultArguments"]
            wheels = {"Fn::Sub": f"${{ArtifactLocation}}/{zip_name()}"}
            assert arguments["--additional-python-modules"] == wheels, script
            assert arguments["--python-modules-installer-option"] == "--no-index", script

    def test_jobs_accept_the_arguments_that_glue_adds(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The value of one argument looks like an option."""
        ours = {"work-key": "runs/r/compaction.json", "work-digest": "0", "workers": "2", "run-id": "r"}
        ours |= {"control-bucket": str(tmp_path), "state": str(tmp_path / "state.db")}
        arguments = [word for name, value in ours.items() for word in (f"--{name}", value)]
        of_glue = ["--python-modules-installer-option", "--no-index", "--JOB_NAME", "j", "--enable-metrics", "true"]
        assert run_job([*of_glue, *arguments], "compact_data_files") == 1
        assert "runs/r/compaction.json" in caplog.text


def test_the_build_needs_only_the_standard_library() -> None:
    """The build environment has only pip, uv and hatchling."""
    allowed = {*sys.stdlib_module_names, "artifacts"}
    sources = sorted((ROOT / "artifacts").glob("*.py"))
    assert sources
    assert {module for path in sources for module, _ in imported(path) if module.split(".")[0] not in allowed} == set()


# The functions' layer.


def packages(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"12345")
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_layer_omits_only_files_that_functions_never_use(tmp_path: Path) -> None:
    """And files that differ between two builds of the same source."""
    needed = ["icekeeper/pipeline/events.py", "pyarrow/libarrow.so.2600", "pyarrow/libarrow_substrait.so.2600"]
    needed += ["zstandard/backend_c.cpython-312-x86_64-linux-gnu.so", "icekeeper-0.1.0.dist-info/METADATA"]
    needed += ["pyarrow/libarrow_python.so.2600", "botocore/data/s3/service-2.json", "botocore/data/endpoints.json"]
    unused = ["pyarrow/include/arrow/api.h", "pyarrow/libarrow_flight.so.2600", "rich/console.py", "bin/icekeeper"]
    unused += ["pyarrow/libarrow_python.so", "pyarrow/libarrow_python.so.2600.1.0", "botocore/data/ec2/service-2.json"]
    unused += ["zstandard/_cffi.cpython-312-x86_64-linux-gnu.so", "icekeeper/__pycache__/x.pyc"]
    unused += [f"icekeeper-0.1.0.dist-info/{name}" for name in ("RECORD", "direct_url.json")]
    layer.prune(packages(tmp_path, *needed, *unused))
    assert files_in(tmp_path) == sorted(needed)


def test_every_user_may_read_the_layer(tmp_path: Path) -> None:
    """Lambda reads the layer as another user than its builder, who may have a strict umask."""
    packages(tmp_path, "icekeeper/clock.py")
    assert layer.size_of(tmp_path) == 5
    for path, mode in ((tmp_path / "icekeeper", 0o700), (tmp_path / "icekeeper" / "clock.py", 0o600)):
        path.chmod(mode)
    layer.open_to_all(tmp_path)
    modes = {path.relative_to(tmp_path).as_posix(): oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
    assert modes == {"icekeeper": "0o755", "icekeeper/clock.py": "0o644"}


def test_the_layer_is_built_for_the_python_and_processors_of_the_template() -> None:
    document = load_template()
    common, built = document["Globals"]["Function"], document["Resources"]["IcekeeperLayer"]["Properties"]
    assert [common["Runtime"]] == built["CompatibleRuntimes"] == [f"python{LAYER_PYTHON}"]
    assert common["Architectures"] == built["CompatibleArchitectures"] == [{"Ref": "Architecture"}]
    assert sorted(layer.PLATFORMS) == sorted(document["Parameters"]["Architecture"]["AllowedValues"])


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

# -- locks


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_package_of_a_lock_has_a_version_and_hashes_and_no_other_source(lock: Path) -> None:
    parts = lock.read_text().replace("\\\n", "").splitlines()[1:]
    odd = [part for part in parts if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", part)]
    assert odd == []
    assert len(parts) == len(read_pins(lock)) > 5


@pytest.mark.parametrize(
    ("lock", "versions", "wanted", "python"),
    [
        (LAYER_LOCK, read_pins(CONSTRAINTS), "icekeeper[functions]", LAYER_PYTHON),
        (GLUE_LOCK, pins_for_glue(read_pins(CONSTRAINTS), read_pins(GLUE_PACKAGES)), "icekeeper", GLUE_PYTHON),
        (BUILD_LOCK, read_pins(CONSTRAINTS), None, GLUE_PYTHON),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else None,
)
def test_a_lock_has_the_pinned_versions_of_all_dependencies(
    lock: Path, versions: Mapping[str, str], wanted: str | None, python: str
) -> None:
    """Run ``make lock`` after a change of constraints.txt, pyproject.toml or Glue's packages."""
    pins = read_pins(lock)
    assert pins == {name: versions[name] for name in pins}
    if wanted is not None:
        # By the metadata of the packages installed here; Glue's versions may need others.
        missing = {name for name in needed_by(wanted, python) if name not in pins}
        assert missing == set()


def needed_by(requirement: str, python: str) -> set[str]:
    """The names of all dependencies of a package on Linux, without the package itself."""
    found, ahead = (
        set[tuple[str, str]](),
        [(Requirement(requirement).name, item) for item in ("", *Requirement(requirement).extras)],
    )
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for item in map(Requirement, requires(name) or ()):
            if item.marker is None or item.marker.evaluate({**environment, "extra": extra}):
                ahead.extend((normalized(item.name), each) for each in ("", *item.extras))
    return {name for name, _ in found} - {"icekeeper"}


def small_wheel(folder: Path, name: str, pinned: str) -> Path:
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-{pinned}-py3-none-any.whl", f"{name}-{pinned}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {pinned}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def layer_of(built: Path, folder: Path) -> list[str]:
    layer.build(built, folder, "x86_64")
    return sorted(path.name for path in (folder / "python").glob("*.py"))


def zip_of_wheels(built: Path, folder: Path) -> list[str]:
    packed = glue_wheels.build(built, folder)
    assert packed.name == zip_name()
    with zipfile.ZipFile(packed) as archive:
        requirements, *wheels = archive.namelist()  # the layout that Glue documents
        assert requirements == REQUIREMENTS == "wheels/requirements.txt"
        assert {Path(name).parent.name for name in wheels} == {"wheels"}
        assert archive.read(requirements).startswith(b"deflate==0.9.0 --hash=sha256:")
        return sorted(Path(name).name.split("-")[0] + ".py" for name in archive.namelist() if name.endswith(".whl"))


@pytest.mark.parametrize(
    ("module", "lock", "build"),
    [(layer, "LAYER_LOCK", layer_of), (glue_wheels, "GLUE_LOCK", zip_of_wheels)],
    ids=["layer", "glue"],
)
def test_a_changed_file_of_the_same_name_is_not_installed(
    module: Any,
    lock: str,
    build: Callable[[Path, Path], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    locked = small_wheel(tmp_path / "index", "deflate", "0.9.0")
    ours = small_wheel(tmp_path / "built", "icekeeper", version())
    digest = hashlib.sha256(locked.read_bytes()).hexdigest()
    monkeypatch.setattr(module, lock, tmp_path / "lock.txt")
    (tmp_path / "lock.txt").write_text(f"deflate==0.9.0 --hash=sha256:{digest}\n")
    for tool in ("UV", "PIP"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(locked.parent))
        monkeypatch.setenv(f"{tool}_NO_CACHE", "1")
    assert build(ours, tmp_path / "good") == ["deflate.py", "icekeeper.py"]
    with zipfile.ZipFile(locked, "a") as archive:
        archive.writestr("backdoor.py", "")
    with pytest.raises(subprocess.CalledProcessError):
        build(ours, tmp_path / "bad")
    assert "hash" in capfd.readouterr().err.lower()


def test_the_packages_that_build_the_wheel_are_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[str, ...]]()
    monkeypatch.setattr(wheel, "uv", lambda *given: calls.append(given))
    wheel.build(tmp_path)
    (command,) = calls
    assert command[command.index("--build-constraints") + 1] == str(BUILD_LOCK)
    assert "--require-hashes" in command
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes -r artifacts/locked/build.txt" in makefile
    assert "--require-hashes -r $(SUPPLY_LOCK)" in makefile
    assert f"SUPPLY_LOCK := {SUPPLY_LOCK.relative_to(ROOT)}" in makefile


# -- known vulnerabilities

PINS = {"boto3": "1.44.5", "pyarrow": "26.0.1"}
CLEAN = [{"name": name, "version": pinned, "vulns": []} for name, pinned in PINS.items()]
# pip-audit 2.10.1 without a network, which prints "No known vulnerabilities found" and exits with 0.
UNSCANNED = {"name": "boto3", "skip_reason": "Dependency not found on PyPI and could not be audited: boto3 (1.44.5)"}
KNOWN = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-2"], "fix_versions": ["26.0.2"], "description": "-"}


@pytest.mark.parametrize(
    ("dependencies", "expected"),
    [
        (CLEAN, []),
        ([{**CLEAN[0], "name": "Boto3"}, CLEAN[1]], []),
        ([UNSCANNED, CLEAN[1]], [f"boto3 1.44.5 was not scanned: {UNSCANNED['skip_reason']}"]),
        ([CLEAN[1]], ["boto3 1.44.5 was not scanned: the report does not name it"]),
        ([], [f"{name} {PINS[name]} was not scanned: the report does not name it" for name in PINS]),
        ([{**CLEAN[0], "version": "1.0"}, CLEAN[1]], ["boto3 1.44.5 was not scanned: the report does not name it"]),
        (
            [{"name": "boto3", "version": "1.44.5"}, CLEAN[1]],
            ["boto3 1.44.5 was not scanned: the report does not name it"],
        ),
        ([CLEAN[0], {**CLEAN[1], "vulns": [KNOWN]}], ["pyarrow 26.0.1: PYSEC-2026-1, CVE-2026-2; fixed in 26.0.2"]),
        (
            [CLEAN[0], {**CLEAN[1], "vulns": [{"id": "X", "fix_versions": []}]}],
            ["pyarrow 26.0.1: X; fixed in no version"],
        ),
    ],
)
def test_a_package_that_was_not_scanned_is_reported(dependencies: list[dict[str, Any]], expected: list[str]) -> None:
    assert list(complaints(PINS, {"dependencies": dependencies, "fixes": []})) == expected


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ('cp "reports/${2##*/}" "$8"', 0, "every locked version was scanned"),
        ('echo "{\\"dependencies\\": []}" > "$8"', 1, "was not scanned: the report does not name it"),
        ("true", 1, "nothing was scanned"),
        ('cp "reports/${2##*/}" "$8"; exit 2', 1, "nothing was scanned"),
    ],
    ids=["clean", "not asked", "no report", "broken"],
)
def test_the_audit_succeeds_only_after_a_full_scan(tmp_path: Path, answer: str, code: int, message: str) -> None:
    """With a scripted pip-audit beside the interpreter."""
    (tmp_path / "reports").mkdir()
    for lock in LOCKS:
        clean = [{"name": name, "version": pinned, "vulns": []} for name, pinned in read_pins(lock).items()]
        (tmp_path / "reports" / lock.name).write_text(json.dumps({"dependencies": clean}))
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "pip-audit").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "pip-audit").chmod(0o755)
    command = [str(tmp_path / "python"), "-m", "artifacts.supply_chain", "audit"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.returncode, message in done.stdout + done.stderr) == (code, True), done.stderr


# -- releases and workflows


def test_a_release_has_reproducible_zips_and_checksums(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "layer").mkdir(exist_ok=True)
        (tmp_path / "layer" / "a.py").write_text("x = 1\n")
        zip_folder(tmp_path / "layer", tmp_path / f"{number}.zip")
        (tmp_path / "layer" / "a.py").touch()
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    release = tmp_path / "release"
    release.mkdir()
    (tmp_path / "1.zip").rename(release / "layer.zip")
    (release / "a.whl").write_bytes(b"wheel")
    write_checksums(release)
    checksums = write_checksums(release).read_text()
    digests = [hashlib.sha256((release / name).read_bytes()).hexdigest() for name in ("a.whl", "layer.zip")]
    assert checksums == f"{digests[0]}  a.whl\n{digests[1]}  layer.zip\n"
    assert (CHECKSUMS, (release / CHECKSUMS).read_text()) == ("SHA256SUMS", checksums)


RIGHTS = {
    "publish": {"contents": "write", "id-token": "write", "attestations": "write"},
    "index": {"id-token": "write"},
    "analyze": {"contents": "read", "security-events": "write"},
}
"""Rights of jobs beyond reading the repository."""
PUBLISHING = ("publish", "index")


def test_publishing_jobs_run_no_code_of_the_repository_or_of_packages() -> None:
    """They use what an earlier job has built with read rights only."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert [(name, job.get("needs")) for name, job in jobs.items()] == [
        ("build", None),
        ("publish", "build"),
        ("index", "publish"),
    ]
    assert [step["run"].split()[0] for name in PUBLISHING for step in jobs[name]["steps"] if "run" in step] == [
        "sha256sum",
        "gh",
        "mkdir",
    ]
    used = [step["uses"].partition("@")[0] for name in PUBLISHING for step in jobs[name]["steps"] if "uses" in step]
    assert used == [
        "actions/download-artifact",
        "actions/attest-build-provenance",
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_have_least_rights(workflow: Path) -> None:
    text = workflow.read_text()
    used = re.findall(r"uses: (.+)", text)
    assert used
    trusted = "actions/[a-z-]+|github/codeql-action/[a-z]+|pypa/gh-action-pypi-publish"
    pinned = re.compile(rf"({trusted})@[0-9a-f]{{40}} # v[0-9]+\.[0-9]+\.[0-9]+")
    assert [item for item in used if not pinned.fullmatch(item)] == []
    document = yaml.safe_load(text)
    assert document["permissions"] == {"contents": "read"}
    for name, job in document["jobs"].items():
        assert job.get("permissions", {"contents": "read"}) == RIGHTS.get(name, {"contents": "read"})
        checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        assert [step["with"]["persist-credentials"] for step in checkouts] == [False] * (name not in PUBLISHING)
    if workflow.name != "codeql.yml":
        steps = [step for job in document["jobs"].values() for step in job["steps"]]
        assert {"run": "make audit"} in steps
    # A pull request must not run code with the rights of the repository.
    assert "pull_request_target" not in text
    assert "${{ github.event" not in text


def test_bytecode_is_not_deployed_with_the_functions(tmp_path: Path) -> None:
    """SAM names the zip of ``functions/`` by its digest, and deploys all functions again if it changes."""
    folder = tmp_path / "functions"
    shutil.copytree(ROOT / "functions", folder, ignore=shutil.ignore_patterns("__pycache__"))

    def digest() -> str:
        zip_folder(folder, tmp_path / "functions.zip")
        return hashlib.sha256((tmp_path / "functions.zip").read_bytes()).hexdigest()

    clean = digest()
    assert compileall.compile_dir(folder, quiet=1)
    assert digest() != clean
    layer.remove_bytecode(folder)
    assert digest() == clean


def test_all_jobs_and_pages_use_one_version_of_glue() -> None:
    """The version of ``artifacts/glue-VERSION.txt``; pages name other versions only with "and later"."""
    assert {job["GlueVersion"] for _, job in JOBS.values()} == {GLUE_VERSION}
    assert [path.name for path in GLUE_PACKAGES.parent.glob("glue-*.txt")] == [f"glue-{GLUE_VERSION}.txt"]
    for path in (ROOT / "README.md", ROOT / "pyproject.toml", GLUE_PACKAGES, *(ROOT / "docs").rglob("*.md")):
        versions = re.findall(r"Glue (\d+\.\d+)(?! and later)", path.read_text())
        assert set(versions) <= {GLUE_VERSION}, path.name
