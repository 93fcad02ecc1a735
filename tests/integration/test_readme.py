"""The commands of the README, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS: list[str] = re.findall(r"^```sh test\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A catalog ``lake`` with the table that the README speaks of."""
    properties = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": (tmp_path / "warehouse").as_uri()}
    rows = pa.table({"order_id": pa.array([1, 2, 3], pa.int64()), "region": ["us", "eu", None]})
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", rows.schema)
    for _ in range(12):
        table.append(rows)
    catalog.close()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))}
    configured = {
        f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in {"type": "sql", **properties}.items()
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**kept, **configured, "PATH": path, "HOME": str(tmp_path), "ICEKEEPER_STATE": str(tmp_path / "state.db")}


def test_the_commands_of_the_readme_work_in_their_order(environment: dict[str, str]) -> None:
    assert len(BLOCKS) == 8
    shown = ""
    for block in BLOCKS:
        done = subprocess.run(
            ["sh", "-e", "-c", block], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        shown += done.stdout
    told = README.read_text().partition("## Commands")[2].partition("| exit code")[0]
    excerpts = [line.strip() for line in told.splitlines() if line.startswith("    ")]
    assert len(excerpts) == 11
    assert [line for line in excerpts if line not in shown.splitlines()] == [], shown
