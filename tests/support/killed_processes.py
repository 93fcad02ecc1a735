"""Processes and pipeline runs that die at a given step."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

from icekeeper.catalogs.catalog import identity_of
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.metadata.table_reader import TableReader, reachable_files
from icekeeper.model import TableName
from icekeeper.operation_facts import STEPS
from icekeeper.pipeline.control_bucket import Work
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.glue_job import End, run_work
from icekeeper.state.sqlite.store import SqliteFile
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from icekeeper.verification.verify import verify_table
from support.maintained_table import files_below, maintained_table
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline, Wave
from support.readers import canonical, pyiceberg_rows

# A process that dies at its n-th call to storage, state or catalog, so that none of its code runs afterwards.

_KILLED, _BROKEN = 9, 1
_LONGEST_S = 120
"""The kernel then ends the child: a lock that a thread of the parent held at the fork is never released."""
# Calls that change something: a death between two reads equals a death before the next of these calls.
_STEPS: tuple[tuple[type, str], ...] = (
    (Storage, "write"),
    (Storage, "open_output"),
    (Storage, "delete"),
    (SqliteFile, "write"),
    (SqlCatalog, "commit"),
)
# Blocks: a death at the end of a block comes before its commit.
_BLOCKS: tuple[tuple[type, str], ...] = ((SqliteFile, "transaction"),)


def dies_at(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a forked child, which dies at its step ``number`` without running any handler.

    There is a step before and after each call.  Return False if the work ended before this step.
    """
    child = os.fork()
    if child == 0:
        status = _BROKEN
        signal.alarm(_LONGEST_S)
        try:
            with _death_at(number):
                work()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, _KILLED), f"the work broke before step {number}"
    return status == _KILLED


@contextmanager
def _death_at(number: int) -> Iterator[None]:
    taken, lock = 0, threading.Lock()

    def step() -> None:
        nonlocal taken
        with lock:
            taken += 1
            if taken == number:
                os._exit(_KILLED)

    def counted(owner: type, name: str) -> Any:
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            step()
            result = original(*args, **options)
            step()
            return result

        return mock.patch.object(owner, name, call)

    def counted_block(owner: type, name: str) -> Any:
        original = getattr(owner, name)

        @contextmanager
        def block(*args: Any, **options: Any) -> Iterator[Any]:
            step()
            with original(*args, **options) as given:
                yield given
                step()
            step()

        return mock.patch.object(owner, name, block)

    with ExitStack() as patches:
        for owner, name in _STEPS:
            patches.enter_context(counted(owner, name))
        for owner, name in _BLOCKS:
            patches.enter_context(counted_block(owner, name))
        yield


# Runs of the pipeline that die at any step and are started again, and checks of their tables afterwards.

Begin: TypeAlias = Callable[[Pipeline], Callable[[Pipeline], None]]
"""Prepares a run and returns the work that dies, which is called again with the same run id."""

_LATER_MS = 200 * HOUR_MS  # every grace period and every record of a job has expired
_LATER_RUNS = 2


def _pass(pipeline: Pipeline, item: Item, run_id: str) -> None:
    """A complete pass in functions; a second call does not know of the first."""
    plan = pipeline.documents(item, run_id).plan() or pipeline.plan(item, run_id)
    for step in STEPS:
        if plan.routes.get(step) == "function":
            count, listed = pipeline.list_orphans(item, run_id) if step == "remove_orphans" else (1, None)
            if count:
                pipeline.run(item, step, run_id=run_id, listed=listed)


def _reported(pipeline: Pipeline, items: list[Item], run_id: str) -> None:
    pipeline.report(run_id)
    statuses = {item.table: pipeline.document(item, "pass.json", run_id)["status"] for item in items}
    assert set(statuses.values()) <= {"succeeded"}, statuses


def in_functions(pipeline: Pipeline) -> Callable[[Pipeline], None]:
    """The complete pass over ``ns.t``, and its report."""
    items = pipeline.detect(table="ns.t")[1]

    def work(again: Pipeline) -> None:
        _pass(again, items[0], RUN)
        _reported(again, items, RUN)

    return work


def in_a_wave(pipeline: Pipeline) -> Callable[[Pipeline], None]:
    """The wave of three tables."""
    work = Wave(pipeline).work()
    return lambda again: _wave(again, work)


def _wave(pipeline: Pipeline, work: Work) -> None:
    ends = run_work(pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="0"), work, LocalEngine(1))
    assert set(ends.values()) == {End.DONE}


def _with_functions(pipeline: Pipeline) -> Pipeline:
    """Let functions compact, because no jobs run later."""
    pipeline.environment["ICEKEEPER_SMALL_COMPACTION_MB"] = "1024"
    pipeline.deployment = pipeline.open()
    return pipeline


class KilledRuns:
    """A run over tables that are restored before each death."""

    def __init__(self, folder: Path, begin: Begin) -> None:
        self._template, self._folder = folder / "template", folder / "tables"
        with maintained_table(self._folder) as table:
            table.create()
            table.fill(5)
            table.plant("data/orphan.parquet")
            self._work = begin(_with_functions(Pipeline(table, self._folder)))
            self._names = [".".join(name) for name in table.pyiceberg.list_tables("ns")]
        shutil.copytree(self._folder, self._template)
        with self._restored() as pipeline:
            self._rows = {name: self._read(pipeline, name) for name in self._names}
            tables = {name: pipeline.table.pyiceberg.load_table(name) for name in self._names}
            self._files = {name: len(table.inspect.files()) for name, table in tables.items()}

    def survive(self, number: int) -> bool:
        """Let the run die at a step, start it again, and let later runs clean up; False if it has fewer steps."""
        with self._restored() as pipeline:
            if not dies_at(number, partial(self._work, pipeline)):
                return False
            self._check(pipeline, number)
            self._work(pipeline)
            self._check(pipeline, number)
            self._check_journal(pipeline, number)
            for late in range(_LATER_RUNS):
                pipeline.clock.now_ms += _LATER_MS
                items = pipeline.detect(f"late-{late}")[1]
                for item in items:
                    _pass(pipeline, item, f"late-{late}")
                _reported(pipeline, items, f"late-{late}")
            self._check(pipeline, number)
            left = self._unreferenced(pipeline)
            assert left == set(), f"after a death at step {number} no run deletes {left}"
        return True

    @contextmanager
    def _restored(self) -> Iterator[Pipeline]:
        shutil.rmtree(self._folder)
        shutil.copytree(self._template, self._folder)
        with maintained_table(self._folder) as table:
            yield _with_functions(Pipeline(table, self._folder))

    def _read(self, pipeline: Pipeline, name: str) -> object:
        return canonical(pyiceberg_rows(pipeline.table.pyiceberg.load_table(name).metadata_location))

    def _check(self, pipeline: Pipeline, number: int) -> None:
        """Check that the rows are the same, and that every reachable file exists."""
        for name in self._names:
            assert self._read(pipeline, name) == self._rows[name], f"{name} after a death at step {number}"
            loaded = pipeline.table.catalog.load(TableName.parse(name))
            assert not verify_table(loaded, Storage(loaded.io_properties)).problems

    def _check_journal(self, pipeline: Pipeline, number: int) -> None:
        """Check that the journal has each commit once."""
        for name in self._names:
            loaded = pipeline.table.catalog.load(TableName.parse(name))
            passes = pipeline.deployment.state.history(identity_of(pipeline.table.catalog, loaded))
            assert [line.run_id for line in passes] in ([], [RUN]), f"{passes} after a death at step {number}"
            merged = sum(line.metrics.get("compact.files_merged", 0) for line in passes)
            assert merged == (self._files[name] if passes else 0), f"{passes} after a death at step {number}"

    def _unreferenced(self, pipeline: Pipeline) -> set[str]:
        found = files_below(self._folder / "warehouse")
        for name in self._names:
            loaded = pipeline.table.catalog.load(TableName.parse(name))
            reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
            found -= {normalise(path) for path in reachable_files(reader, loaded.metadata_location)}
        return {path for path in found if not path.endswith(".metadata.json")}
