"""The commands of the README, as they stand there, called in this process: the script itself is in ``test_cli``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.cli import main

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS: list[str] = re.findall(r"^```sh test\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog ``lake`` with the table that the README speaks of."""
    properties = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": (tmp_path / "warehouse").as_uri()}
    rows = pa.table({"order_id": pa.array([1, 2, 3], pa.int64()), "region": ["us", "eu", None]})
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", rows.schema)
    for _ in range(12):
        table.append(rows)
    catalog.close()
    for name in [*os.environ]:
        if name.startswith(("PYICEBERG_", "ICEKEEPER_")):
            monkeypatch.delenv(name)
    for key, value in {"type": "sql", **properties}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # where commands write
    monkeypatch.setenv("ICEKEEPER_STATE", str(tmp_path / "state.db"))


def test_every_catalog_is_configured_before_it_is_used() -> None:
    text = README.read_text()
    used = [*re.finditer(r"(?:--catalog|orders\.py) (\w+)", text)]
    assert {found[1] for found in used} == {"lake", "seaweed"}
    for found in used:
        before = text[: found.start()]
        assert f"PYICEBERG_CATALOG__{found[1].upper()}__" in before or f"\n  {found[1]}:  " in before, found


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of each command, as a shell would find them."""
    for line in block.replace("\\\n", " ").splitlines():
        name, *arguments = shlex.split(line, comments=True) or ["icekeeper"]
        assert name == "icekeeper"
        if arguments:
            yield arguments


@pytest.mark.usefixtures("lake")
def test_the_commands_of_the_readme_work_in_their_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert len(BLOCKS) == 10
    shown = ""
    for arguments in (arguments for block in BLOCKS for arguments in commands(block)):
        code = main([one.replace("file:///tmp/lake/", f"{(tmp_path / 'warehouse').as_uri()}/") for one in arguments])
        captured = capsys.readouterr()
        assert code == 0, f"{arguments}\n{captured.err}"
        shown += captured.out
    told = README.read_text().partition("## Commands")[2].partition("| exit code")[0]
    excerpts = [line.strip() for line in told.splitlines() if line.startswith("    ")]
    assert len(excerpts) == 12
    assert [line for line in excerpts if line not in shown.splitlines()] == [], shown
