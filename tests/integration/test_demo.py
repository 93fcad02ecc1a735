"""The demonstration with the local engine: its results, its clean-up, and its end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icekeeper.cli import main
from support.command import one_sentence, require_documented
from support.examples import in_nightly

ICEKEEPER = str(Path(sys.executable).parent / "icekeeper")
WAIT_S = 300
"""Far more than it takes, because a busy machine needs minutes."""

pytestmark = [pytest.mark.seaweedfs, pytest.mark.xdist_group("demo")]


@pytest.fixture
def scratch(tmp_path: Path) -> dict[str, str]:
    """An environment with its own temporary folder, in which the test finds files that are left behind."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))}
    return {**kept, "TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path / "home")}


@contextmanager
def started(*arguments: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A running command, which is killed when the block ends."""
    command = [ICEKEEPER, *arguments]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        signal.signal(signal.SIGINT, before)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def servers_below(folder: Path) -> list[int]:
    """SeaweedFS processes that work in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "weed" in (process / "comm").read_text() and folder in (process / "cwd").resolve().parents:
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def assert_nothing_is_left(folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while servers_below(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert servers_below(folder) == []
    assert list((folder / "tmp").iterdir()) == []
    assert list((folder / "home").iterdir()) == []


def figures(story: dict[str, Any], key: str) -> tuple[int, int]:
    return story["before"][key], story["after"][key]


@in_nightly
def test_every_table_becomes_healthy_and_the_bucket_can_be_explored(
    tmp_path: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", scratch["TMPDIR"])
    monkeypatch.setenv("HOME", scratch["HOME"])
    kept = tmp_path / "kept here"  # the printed command must quote the space
    code = main(["demo", "--json", "--engine", "local", "--keep", str(kept)])
    out, err = capsys.readouterr()
    assert code == 0, err
    document = json.loads(out)
    require_documented(["demo"], document)
    assert list(document) == ["ok", "seconds", "tables", "catalog", "status"]
    assert document["ok"] is True
    stories = {story["table"]: story for story in document["tables"]}
    assert list(stories) == ["shop.clicks", "shop.orders", "shop.events", "shop.customers"]
    for story in stories.values():
        assert story["status"] == "succeeded"
        assert story["same_rows"] is True
        assert story["rows_before"] == story["rows_after"]
        assert figures(story, "orphans")[1] == 0
        for key in ("data_files", "snapshots", "manifests", "planning_requests"):
            before, after = figures(story, key)
            assert after < before, (story["table"], key)
    assert figures(stories["shop.clicks"], "data_files") == (60, 1)
    assert stories["shop.clicks"]["rows_after"]["head"]["rows"] == 240_000
    assert figures(stories["shop.orders"], "data_files") == (7, 3)  # region=eu has too few to merge
    assert figures(stories["shop.events"], "snapshots")[0] == 40
    assert stories["shop.events"]["rows_after"]["tagged"]["rows"] == 10_000
    assert figures(stories["shop.customers"], "orphans") == (15, 0)
    assert "before → after" in err
    assert shlex.split(err)[-3:] == ["demo", "--explore", str(kept)]
    assert_nothing_is_left(tmp_path)

    assert main(["demo", "--engine", "local", "--keep", str(kept)]) == 2
    assert one_sentence(capsys.readouterr().err) == f"--keep {kept} is not empty; name a new folder"

    explore(kept, scratch)
    assert_nothing_is_left(tmp_path)


def explore(kept: Path, environment: dict[str, str]) -> None:
    """Serve the kept bucket, read it with the printed settings, and end the server with Ctrl-C."""
    with started("demo", "--explore", str(kept), environment=environment) as process:
        assert process.stdout is not None
        settings = {}
        for line in process.stdout:
            if not line.startswith("export "):
                break
            name, _, value = shlex.split(line)[1].partition("=")
            settings[name] = value
        assert settings
        examples = [shlex.split(process.stdout.readline()) for _ in range(3)][1:]
        assert [Path(example[0]).name for example in examples] == ["icekeeper", "icekeeper"]
        assert examples[1][1:] == ["verify", "shop.clicks", "--catalog", "demo"]
        command = [ICEKEEPER, *examples[1][1:], "--json"]
        verified = subprocess.run(
            command, env={**environment, **settings}, capture_output=True, text=True, timeout=2 * WAIT_S, check=False
        )
        assert verified.returncode == 0, verified.stderr
        assert json.loads(verified.stdout)["ok"] is True
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        assert process.returncode != -signal.SIGKILL


def test_a_terminated_demonstration_cleans_up(tmp_path: Path, scratch: dict[str, str]) -> None:
    with started("demo", "--engine", "local", environment=scratch) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("SeaweedFS serves a table bucket at http://127.0.0.1:")
        assert servers_below(tmp_path)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode != 0
    assert "Traceback" not in errors
    assert_nothing_is_left(tmp_path)


def test_exploring_a_missing_folder_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = tmp_path / "nothing"
    assert main(["demo", "--explore", str(nothing)]) == 2
    assert one_sentence(capsys.readouterr().err).startswith(f"{nothing} holds no demonstration")
    assert not nothing.exists()
