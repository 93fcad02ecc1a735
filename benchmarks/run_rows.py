"""Runs a row: everybody is started and warm, then they take turns, and every result is proven before it counts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contestants import CONTESTANTS, Entrant, with_before
from benchmarks.measure import Contestant, ContestantFailed, Cost, WholeCommand
from benchmarks.metadata_proof import live_file_digest
from benchmarks.output_facts import output_facts
from benchmarks.peers.environment import PeersEnvironment
from benchmarks.peers.rest_catalog import RestCatalogServer
from benchmarks.proof import Expected, expected_rows, expected_upserts, files_opened, live_paths, prove
from benchmarks.row import Row
from benchmarks.tables.datasets import dataset
from benchmarks.tables.kept_table import KeptTable
from benchmarks.turns import Found, rounds_for, take_turns, warm

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Ways:
    """What all rows share."""

    work: Path
    peers: PeersEnvironment
    rest: RestCatalogServer
    rounds: int | None
    """``None``: five of short rows, three of others."""
    without: frozenset[str]
    """Contestants that are left out on request."""
    beside: Path | None
    """The checkout of another commit, whose Icekeeper takes part."""
    say: Callable[[str], None]
    staying: dict[str, Contestant] = field(default_factory=dict)
    """Processes that serve all rows."""

    def names(self, row: Row) -> list[str]:
        """Who takes part in the row."""
        names = row.entrants if self.beside is None else with_before(row.entrants)
        return [name for name in names if name not in self.without]

    def close(self) -> None:
        """End what stayed."""
        for contestant in self.staying.values():
            contestant.close()


@dataclass(frozen=True, slots=True)
class RowFound:
    """The results of a row; ``data``: how much work there was."""

    row: Row
    scale: float
    data: Mapping[str, int]
    found: Mapping[str, Found]
    rounds: int


def run_row(row: Row, scale: float, ways: Ways) -> RowFound:
    """Measure a row; the result contains failures."""
    table = dataset(ways.work, row.dataset, scale)
    expected = _expected(row, table)
    found = {name: Found() for name in ways.names(row)}
    running: dict[str, Contestant] = {}
    try:
        for name, entry in found.items():
            try:
                running[name] = _started(name, row, ways)
            except ContestantFailed as error:
                entry.error = str(error)
                ways.say(f"  {CONTESTANTS[name].title}: {entry.error}")

        def one_run(name: str, contestant: Contestant) -> tuple[Cost, str, dict[str, float]]:
            return _one_run(name, contestant, row, table, expected, ways)

        def one_cost(name: str, contestant: Contestant) -> Cost:
            return _cost(name, contestant, row, table, ways)[0]

        total_s = warm(running, found, one_cost, ways.say)
        rounds = ways.rounds or rounds_for(total_s)
        take_turns(running, found, rounds, one_run, ways.say)
    finally:
        for name, contestant in running.items():
            if CONTESTANTS[name].stays and not row.is_whole:
                ways.staying[name] = contestant
            else:
                contestant.close()
        table.set_back()
    data = {"files": len(table.data_files), "bytes": table.data_bytes, "rows": 0}
    if expected.rows is not None:
        data["rows"] = expected.rows.rows
    else:
        data["files"] = expected.counted if expected.live is None else expected.live.files
    return RowFound(row, scale, data, found, rounds)


def _expected(row: Row, table: KeptTable) -> Expected:
    if row.proof is None:
        upserts = row.dataset == "cdc"
        paths = [str(path) for path in table.data_files]
        rows = expected_upserts(paths) if upserts else expected_rows(table.metadata_location)
        most = row.most_files if row.most_share is None else round(row.most_share * len(paths))
        return Expected(rows, table.data_bytes, most, sorted_by=row.task["columns"] if row.operation == "sort" else ())
    if row.proof == "detected":
        return Expected(None, 0, None, counted=sum(1 for _ in table.originals.rglob("*.metadata.json")))
    live, orphans = live_file_digest(table.metadata_location), 0
    if row.proof == "orphans":
        orphans = len(table.data_files) - live.files
    kept = int(row.task.get("keep", 0))
    return Expected(None, 0, None, live, table.folder, kept_snapshots=kept, counted=orphans)


def _started(name: str, row: Row, ways: Ways) -> Contestant:
    """The contestant, after it has done the same operation on a small table."""
    entrant = CONTESTANTS[name]
    command, environment = program(entrant, ways)
    log = ways.work / "logs" / f"{name}.log"
    if row.is_whole and entrant.module != "icekeeper_command":
        return WholeCommand(command, environment, log)
    contestant = ways.staying.pop(name, None) or Contestant(command, environment, log)
    try:
        warm_up = dataset(ways.work, *row.warm_up)
        contestant.run(_task(entrant, row, warm_up, ways))
        warm_up.set_back()
    except ContestantFailed:
        contestant.close()
        raise
    return contestant


def program(entrant: Entrant, ways: Ways) -> tuple[list[str], dict[str, str]]:
    """The command that starts a contestant, and its environment.

    Raises:
        ContestantFailed: its packages are not there.
    """
    why = ways.peers.reason(entrant.packages)
    if why is not None:
        raise ContestantFailed(why)
    python, root = ways.peers.python if entrant.packages else Path(sys.executable), _ROOT
    if entrant.is_before:
        assert ways.beside is not None
        root = ways.beside
        python = root / ".venv" / "bin" / "python"
    (ways.work / "logs").mkdir(parents=True, exist_ok=True)
    return [str(python), "-m", f"benchmarks.peers.{entrant.module}"], {**os.environ, "PYTHONPATH": str(root)}


def _one_run(
    name: str, contestant: Contestant, row: Row, table: KeptTable, expected: Expected, ways: Ways
) -> tuple[Cost, str, dict[str, float]]:
    try:
        cost, answer = _cost(name, contestant, row, table, ways)
        if "rest_table" in answer:
            answer["metadata_location"] = ways.rest.metadata_location(answer["rest_table"])
        proof, more = prove(row.proof or CONTESTANTS[name].proof, answer, expected), {}
        if row.predicates:
            more["files_opened"] = float(files_opened(answer["metadata_location"], row.predicates))
        if expected.rows is not None and CONTESTANTS[name].proof != "bytes":
            layout, facts = output_facts(answer.get("files") or live_paths(answer["metadata_location"]))
            proof, more = f"{proof}; {layout}", more | facts
        return cost, proof, more
    finally:
        shutil.rmtree(_scratch(ways), ignore_errors=True)


def _cost(name: str, contestant: Contestant, row: Row, table: KeptTable, ways: Ways) -> tuple[Cost, dict[str, Any]]:
    """What a run on the table as it was made costs, and the answer."""
    table.set_back()
    task = _task(CONTESTANTS[name], row, table, ways)
    os.sync()  # otherwise this run would pay for writes that earlier runs left
    return contestant.run(task)


def _scratch(ways: Ways) -> Path:
    return ways.work / "scratch"


def _task(entrant: Entrant, row: Row, table: KeptTable, ways: Ways) -> dict[str, Any]:
    scratch = _scratch(ways)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    task: dict[str, Any] = {
        "operation": row.operation,
        "metadata_location": table.metadata_location,
        "table_folder": str(table.folder),
        "scratch": str(scratch),
        "warehouse": str(ways.work / "warehouse"),
        "settings": {key: value.format(table_folder=table.folder) for key, value in row.settings.items()},
        **row.task,
        **entrant.task,
    }
    if entrant.proof in ("files", "bytes"):
        task["data_files"] = [str(path) for path in table.data_files]
    if entrant.module == "iceberg_compaction":
        task |= {"rest_uri": ways.rest.uri, "rest_table": ways.rest.register(table.metadata_location)}
    return task
