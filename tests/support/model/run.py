"""A run of a history: its table, its maintainers, and the invariants after every step."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from icekeeper import errors
from icekeeper.errors import MaintenanceError
from icekeeper.metadata.document import TableMetadata
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status
from icekeeper.storage.paths import normalise
from support.model.process import Maintainer, in_one_thread
from support.model.reader import NaiveReader, local
from support.model.world import World, maintainer_of, watched
from support.model.writers import WRITER, ModelRow, Writers


def _broke(outcome: OperationOutcome) -> bool:
    """Whether an operation failed with an error outside the tree in ``errors``."""
    kind = (outcome.reason or "").partition(":")[0]
    return outcome.status is Status.FAILED and kind.endswith(("Error", "Exception")) and not hasattr(errors, kind)


@dataclass
class Counts:
    """Counts of the steps of all histories."""

    histories: int = 0
    steps: int = 0
    done: Counter[str] = field(default_factory=Counter)


class Run:
    """A table in an empty folder, its writers and its maintainers.

    The rows after a writer's commit are known before (:attr:`.Writers.expected`); a maintainer must keep all rows.
    """

    def __init__(self, folder: Path, counts: Counts, maintainers: Sequence[str], *, by_requirements: bool) -> None:
        self._counts = counts
        self._new: list[tuple[int, int | None, str]] = []
        """Snapshots that landed and are not yet read, with their parents and authors."""
        self._problems: list[str] = []
        self.aging: set[str] = set()
        """Refs that a pass may drop, because they are too old."""
        self._world = World(folder, by_requirements, self._landed)
        self.writers = Writers(self._world, NaiveReader())
        self._maintainers: list[Maintainer] = []
        self._names = maintainers

    @property
    def trace(self) -> list[str]:
        return self.writers.trace

    @contextmanager
    def _under_way(self, *, leases: bool) -> Iterator[None]:
        with watched(self._world, leases=leases), in_one_thread():  # so that a step is the same in each run
            self._maintainers = [maintainer_of(self._world, name) for name in self._names]
            for maintainer in self._maintainers:
                maintainer.process.trace = self.trace
            try:
                yield
            finally:
                for maintainer in self._maintainers:
                    if maintainer.process.is_at_work:
                        maintainer.process.kill()

    def _go(self, maintainer: Maintainer, steps: int) -> None:
        process = maintainer.process
        process.go(steps)
        if process.is_at_work:
            self.trace.append(f"{process.name}: stands still after step {process.steps}")
            return
        outcome = process.outcome
        if isinstance(outcome, PassOutcome):
            ends = [f"{o.operation.value} {o.status.value} ({o.reason or o.summary})" for o in outcome.operations]
            self.trace.append(f"{process.name}: ended {outcome.status.value}: {'; '.join(ends)}")
            self._counts.done[f"pass {outcome.status.value}"] += 1
            broken = [part for part in outcome.operations if _broke(part)]
            assert not broken, broken
        elif process.is_killed:
            self._counts.done["pass killed"] += 1
        elif isinstance(outcome, MaintenanceError):
            self.trace.append(f"{process.name}: {type(outcome).__name__}: {outcome}")
            self._counts.done[f"pass {type(outcome).__name__}"] += 1
        elif isinstance(outcome, BaseException):
            raise AssertionError(f"{process.name} failed: {outcome!r}") from outcome

    # -- invariants

    def _landed(self, before: TableMetadata | None, after: TableMetadata, by: str) -> None:
        if before is None or before.uuid != after.uuid:
            return
        known = before.snapshots.keys()
        self._new += [(i, s.parent_id, by) for i, s in after.snapshots.items() if i not in known]
        if by == WRITER:
            return
        self._counts.done["commits"] += 1
        self.trace.append(f"{by}: lands {[i for i in after.snapshots if i not in known]}")
        for name, ref in before.refs.items():
            now = after.refs.get(name)
            if now is None and name in self.aging:
                continue
            if now is None or now.type != ref.type:
                self._problems.append(f"{by} dropped {name}")
            elif now.snapshot_id != ref.snapshot_id and after.snapshots[now.snapshot_id].parent_id != ref.snapshot_id:
                self._problems.append(f"{by} moved {name} from {ref.snapshot_id} to {now.snapshot_id}")
        self._problems += [f"{by} made {name}" for name in after.refs.keys() - before.refs.keys()]

    def check(self) -> None:
        """Check that new snapshots have the expected rows, and that every reachable file exists."""
        assert not self._problems, self._problems
        new, self._new = self._new, []
        for snapshot_id, parent, by in new:
            writers = self.writers
            if by == WRITER:
                writers.expected[snapshot_id] = writers.by_writers.pop(snapshot_id)
            else:
                assert parent is not None
                writers.expected[snapshot_id] = dict(writers.expected[parent])
            if snapshot_id in self._world.table.snapshots:
                self._read(snapshot_id, parent, by)
        for snapshot_id in self._world.table.snapshots:
            lost = self.writers.reader.lost(self.writers.manifest_list(snapshot_id))
            assert not lost, f"snapshot {snapshot_id} lacks {sorted(lost)}"

    def _read(self, snapshot_id: int, parent: int | None, by: str) -> None:
        """Read a snapshot naively, compare it with the model, and learn the lineage of new rows."""
        writers = self.writers
        rows, model = writers.live(snapshot_id), writers.expected[snapshot_id]
        twice = [i for i, times in Counter(row.id for row in rows).items() if times > 1]
        found = {row.id for row in rows}
        missing, extra = sorted(model.keys() - found), sorted(found - model.keys())
        assert (twice, missing, extra) == ([], [], []), f"snapshot {snapshot_id}: {twice=}, {missing=}, {extra=}"
        columns, defaults = [column["id"] for column in writers.columns], writers.defaults
        for row in rows:
            known = model[row.id]
            is_now = {i: row.values.get(i, defaults.get(i)) for i in columns}
            was = {i: known.values.get(i, defaults.get(i)) for i in columns}
            assert is_now == was, f"snapshot {snapshot_id}: row {row.id} is {is_now}, was {was}"
            if known.row_id is not None:
                now, then = (row.row_id, row.changed), (known.row_id, known.changed)
                assert now == then, f"snapshot {snapshot_id}: row {row.id} has lineage {now}, had {then}"
        numbers = Counter(row.row_id for row in rows if row.row_id is not None)
        assert not numbers or max(numbers.values()) == 1, f"snapshot {snapshot_id} has row ids twice: {numbers}"
        writers.expected[snapshot_id] = {
            row.id: ModelRow(model[row.id].values, row.row_id, row.changed) for row in rows
        }
        self._counts.done["snapshots read"] += 1

    def reachable(self) -> set[str]:
        """The normalised paths of all files that the snapshots and the statistics of the table need."""
        table, reader = self._world.table, self.writers.reader
        needed = {path for i in table.snapshots for path in reader.needed(self.writers.manifest_list(i))}
        for kind in ("statistics", "partition-statistics"):
            needed |= {str(item["statistics-path"]) for item in table.document.get(kind) or ()}
        return {normalise(path) for path in needed}

    def on_disk(self) -> set[str]:
        """All files of the table."""
        home = local(self._world.table.location)
        return {f"{folder}/{name}" for folder, _, names in os.walk(home) for name in names}

    def litter(self) -> set[str]:
        """Unreachable files of the table, except metadata files."""
        return {path for path in self.on_disk() - self.reachable() if not path.endswith(".metadata.json")}


@contextmanager
def temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="icekeeper-history-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
