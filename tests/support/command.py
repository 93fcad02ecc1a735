"""The ``icekeeper`` command, called in this process, and its passes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
import typer.main
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # has no types
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.cli import main
from icekeeper.cycle import pass_process
from icekeeper.cycle.pass_process import PassEnd, Passes, PassOrder
from icekeeper.engines.engine import Engine, EngineName
from icekeeper.policy import ALL_OPERATIONS
from icekeeper.runtime import open_engine
from support import ready_tables

# The ``icekeeper`` command on a new catalog, called in this process, and the files on the disk.

CATALOG = "C"
ABOUT = {"table": "ns.t", "catalog": CATALOG, "status": "succeeded"}
"""The first keys of JSON documents about table ``ns.t``."""
EVERYTHING_IS_OLD = (
    "--unsafe",
    *("--set", "snapshot_retention_hours=0"),
    *("--set", "max_snapshots_to_keep=1"),
    *("--set", "orphan_older_than_hours=0"),
)


@functools.cache
def build_the_command_once() -> None:
    """Cache the command: at each call, Typer would build it again, which takes longer than most calls."""
    typer.main.get_command = functools.cache(typer.main.get_command)


def in_this_process(
    engine: Engine, open_catalog: Callable[[str], Catalog] = open_catalog
) -> Callable[[PassOrder, Event], PassEnd]:
    """A replacement for :class:`.PassProcesses` without processes, which start slowly and lack the hooks of a test."""
    idle: list[Passes] = []

    def run_pass(order: PassOrder, stop: Event) -> PassEnd:
        passes = idle.pop() if idle else Passes(os.environ, engine, stop, open_catalog=open_catalog)
        end = passes.maintain(order)
        idle.append(passes)
        return end

    return run_pass


@contextmanager
def without_processes(name: EngineName, environment: object) -> Iterator[Callable[[PassOrder, Event], PassEnd]]:
    with open_engine(name) as engine:
        yield in_this_process(engine)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call of the command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The document on standard output, which must contain nothing else."""
        document: dict[str, Any] = json.loads(self.out)
        return document


_SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
_GROUPS = ("policy", "pin", "stage", "claims", "request")


@functools.cache
def _schema(name: str) -> Any:
    return Draft202012Validator(json.loads((_SCHEMAS / f"{name}.json").read_text()))


def require_documented(arguments: Sequence[str], document: Mapping[str, Any]) -> None:
    """Check that the document of this call fits its schema in docs/schemas."""
    words = [word for word in arguments if not word.startswith("-")]
    if words[0] == "request" and "." in words[1]:  # ``request TABLE`` is short for ``request add TABLE``
        words.insert(1, "add")
    name = "-".join(words[: 2 if words[0] in _GROUPS else 1])
    schema = _schema("error" if list(document) == ["error"] else name)
    wrong = [f"{error.json_path}: {error.message}" for error in schema.iter_errors(document)]
    assert wrong == [], f"docs/schemas/{name}.json"


class Command:
    """A local warehouse, its SQLite catalog ``C``, and the command, configured only by the environment."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.database = folder / "catalog.db"
        self.state = folder / "state" / "state.db"
        self.state.parent.mkdir(exist_ok=True)
        self._capsys = capsys
        self.warehouse.mkdir()
        (folder / "home").mkdir()
        for name in [*os.environ]:
            if name.startswith(("PYICEBERG_", "ICEKEEPER_")) and name != "ICEKEEPER_CORPUS":
                patch.delenv(name)
        for name, value in self.environment().items():
            patch.setenv(name, value)
        patch.setattr(pass_process, "PassProcesses", without_processes)
        self.catalog = SqlCatalog(CATALOG, **self.properties)
        self.catalog.create_namespace("ns")

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.database}", "warehouse": self.warehouse.as_uri()}

    def environment(self) -> dict[str, str]:
        """Variables by which the command finds the catalog and its state, but no files of the developer."""
        catalog = {f"PYICEBERG_CATALOG__{CATALOG}__{key.upper()}": value for key, value in self.properties.items()}
        return {"HOME": str(self.folder / "home"), "ICEKEEPER_STATE": str(self.state), **catalog}

    def __call__(self, *arguments: str, catalog: str | None = CATALOG) -> Answer:
        """Call the command in this process."""
        self._capsys.readouterr()
        chosen = [] if catalog is None else ["--catalog", catalog]
        code = main([*arguments, *chosen])
        captured = self._capsys.readouterr()
        if "--json" in arguments and captured.out:
            require_documented(arguments, json.loads(captured.out))
        return Answer(code, captured.out, captured.err)

    def script(self, *arguments: str, timeout_s: float = 60) -> Answer:
        """Call the installed console script."""
        command = [str(Path(sys.executable).parent / "icekeeper"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        return Answer(done.returncode, done.stdout, done.stderr)

    def table(self, name: str = "ns.t", *, appends: int = 6, properties: Mapping[str, str] | None = None) -> Table:
        """Create a table with ``appends`` commits, each with a file of three rows."""
        rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})
        table = self.catalog.create_table(name, rows.schema, properties=dict(properties or {}))

        def write() -> None:
            for _ in range(appends):
                table.append(rows)

        if (local_path(table.location()) / "data").exists():  # a dropped table's files must have other names
            write()
        elif appends:
            ready_tables.fill(self.catalog, table, ("command", appends), write)
        return table.refresh()

    def register(self, metadata_location: str, name: str = "ns.t") -> None:
        """Register a metadata file in the catalog, even if PyIceberg cannot parse it."""
        namespace, _, table = name.rpartition(".")
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute(
                "INSERT INTO iceberg_tables"
                " (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
                " VALUES (?, ?, ?, ?, 'TABLE')",
                (CATALOG, namespace, table, metadata_location),
            )

    def pointers(self) -> list[tuple[str, str]]:
        """Every table and its metadata location."""
        with closing(sqlite3.connect(self.database)) as connection:
            query = "SELECT table_namespace || '.' || table_name, metadata_location FROM iceberg_tables ORDER BY 1"
            return list(connection.execute(query))

    def contents(self) -> dict[str, str]:
        """The digest of every file in the warehouse, and the metadata location of every table."""
        files = {str(path): digest(path) for path in sorted(self.warehouse.rglob("*")) if path.is_file()}
        return {**files, **dict(self.pointers())}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def local_path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def one_sentence(text: str) -> str:
    """The message on standard error, which must be one line that begins with ``error:``, without a traceback."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("error: "), text
    assert "Traceback" not in text
    return lines[0].removeprefix("error: ")


def arguments_of(settings: Mapping[str, str]) -> list[str]:
    """``--set`` for each setting."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


# A pass of the command over a local table, the outcome of each operation in its JSON, and the table's rows.

LOCAL = ("--engine", "local")
PASS = ("maintain", "ns.t", *LOCAL, *EVERYTHING_IS_OLD)
OPERATION_NAMES = [operation.value for operation in ALL_OPERATIONS]


def statuses(answer: Answer) -> dict[str, tuple[str, str | None]]:
    return {part["operation"]: (part["status"], part["reason"]) for part in answer.json["operations"]}


def summaries(answer: Answer) -> dict[str, str]:
    return {part["operation"]: part["summary"] for part in answer.json["operations"]}


def rows(command: Command, name: str = "ns.t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command.catalog.load_table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=str)
