"""The package in fresh environments without our constraints: alone on every Python, and under orchestrators."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from artifacts import wheel
from artifacts.installers import find_python
from artifacts.pins import ROOT

RECIPES = ROOT / "docs" / "examples"
# The package, and the commands that run its recipe once.
ORCHESTRATORS = {
    "airflow": ("apache-airflow>=3,<4", [["airflow", "db", "migrate"], ["airflow", "dags", "test", "icekeeper"]]),
    "dagster": ("dagster>=1.9,<2", [["dagster", "job", "execute", "-f", str(RECIPES / "dagster_job.py")]]),
    "prefect": ("prefect>=3,<4", [["python", "-c", "import prefect_flow; prefect_flow.icekeeper()"]]),
}
TABLES = ("shop.clicks", "shop.orders")


class Lake:
    """Two tables of small files in a SQLite catalog, and a Python environment that names the catalog ``lake``."""

    def __init__(self, folder: Path, python: str, *packages: str | Path) -> None:
        self.folder, bins = folder, folder / "venv" / "bin"
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([bins / "python", "-m", "pip", "install", "-q", *packages], check=True)
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
        self.catalog: Catalog = load_catalog("lake", **properties)
        self.catalog.create_namespace("shop")
        rows = pa.table({"id": [1, 2, 3]})
        for name in TABLES:
            table = self.catalog.create_table(name, rows.schema)
            for _ in range(6):
                table.append(rows)
        kept = {key: value for key, value in os.environ.items() if key in ("HOME", "LANG", "LC_ALL", "TMPDIR")}
        self.environment = kept | {
            **{f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in properties.items()},
            "ICEKEEPER_STATE": f"{folder}/state.db",
            "PATH": f"{bins}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, check=True, timeout=300, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def assert_maintained(self) -> None:
        for name in TABLES:
            scan = self.catalog.load_table(name).scan()
            assert (len(list(scan.plan_files())), scan.to_arrow().num_rows) == (1, 18)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_alone_works_on_every_python(version: str, tmp_path: Path) -> None:
    """It is installed without extras and is typed for programs that import it."""
    interpreter = find_python(version) or pytest.skip(f"there is no Python {version} here")
    lake = Lake(tmp_path, str(interpreter), wheel.build(tmp_path / "dist"), "mypy")
    assert "shop.clicks" in lake.run("icekeeper", "detect", "--catalog", "lake")
    for name in TABLES:
        lake.run("icekeeper", "maintain", name, "--catalog", "lake")
    lake.assert_maintained()
    assert "shop.clicks: ok" in lake.run("icekeeper", "verify", "shop.clicks", "--catalog", "lake")
    (tmp_path / "program.py").write_text(
        "from icekeeper import Icekeeper\n\n"
        'outcome = Icekeeper("lake").maintain("shop.orders", {"rewrite_all": True})\n'
        "summary: str = outcome.summary\n"
    )
    assert "Success" in lake.run("mypy", "--strict", "program.py")
    lake.run("python", "program.py")
    assert lake.run("python", "-c", "import importlib.util as u; print(u.find_spec('pyspark'))") == "None\n"


@pytest.mark.parametrize("name", ORCHESTRATORS)
def test_a_recipe_maintains_every_table_that_needs_work(name: str, tmp_path: Path) -> None:
    package, commands = ORCHESTRATORS[name]
    lake = Lake(tmp_path, sys.executable, package, ROOT)
    home = tmp_path / name
    home.mkdir()
    lake.environment |= {
        **{key: str(home) for key in ("AIRFLOW_HOME", "DAGSTER_HOME", "PREFECT_HOME")},
        "PYTHONPATH": str(RECIPES),
        "AIRFLOW__CORE__DAGS_FOLDER": str(RECIPES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    for command in commands:
        lake.run(*command)
    lake.assert_maintained()
