"""``icekeeper demo``: maintains messy tables in a real table bucket, and shows that no row changed."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pyiceberg.catalog import load_catalog
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.load import open_catalog
from icekeeper.demo.measure import Contents, Figures, measure, read_contents
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from icekeeper.demo.tables import NAMESPACE, MessyTable, create_messy_tables
from icekeeper.detection.proposal import detection_json
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError
from icekeeper.model import TableName
from icekeeper.report.outcome import PassOutcome, PassStatus
from icekeeper.report.terminal import print_detection, print_outcome
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.storage import Storage


def print_figures(console: Console, stories: Sequence[tuple[MessyTable, Figures, Figures]]) -> None:
    """Print files, bytes, snapshots, manifests, orphans and planning requests, before → after, in 80 columns."""
    console.print()
    console.print("before → after")
    table = _columns()
    stored, requests = Group("stored,", "KB"), Group("planning", "requests")
    for heading in ("files", stored, "snapshots", "manifests", "orphans", requests):
        table.add_column(heading, justify="right", no_wrap=True)
    for messy, before, after in stories:
        pairs = (
            (before.data_files, after.data_files),
            (before.stored_bytes // 1024, after.stored_bytes // 1024),
            (before.snapshots, after.snapshots),
            (before.manifests, after.manifests),
            (before.orphans, after.orphans),
            (before.planning_requests, after.planning_requests),
        )
        table.add_row(f"{NAMESPACE}.{messy.name}", *(f"{was:,} → {is_now:,}" for was, is_now in pairs))
    console.print(table)
    console.print("planning requests: the objects that a query opens before it reads data")


def print_contents(console: Console, stories: Sequence[tuple[MessyTable, Contents, Contents]]) -> None:
    """Print rows and checksum, as DuckDB reads them, at the head and at the tag; unchanged contents once."""
    console.print()
    console.print("rows as DuckDB reads them, before and after")
    table = _columns()
    for heading in ("rows", "checksum", ""):
        table.add_column(heading, no_wrap=True)
    for messy, before, after in stories:
        name = f"{NAMESPACE}.{messy.name}"
        (head_before, tagged_before), (head_after, tagged_after) = before, after
        pairs = [(name, head_before, head_after)]
        if tagged_before is not None and tagged_after is not None:
            pairs.append((f"{name} @ {messy.tag}", tagged_before, tagged_after))
        for label, was, is_now in pairs:
            if was == is_now:
                table.add_row(label, str(was.rows), was.checksum, Text("same", style="green"))
            else:
                table.add_row(label, str(was.rows), was.checksum, Text("before", style="red"))
                table.add_row("", str(is_now.rows), is_now.checksum, Text("after: CHANGED", style="red"))
    console.print(table)


def _columns() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("table", no_wrap=True)
    return table


CATALOG = "demo"
BUCKET = "icekeeper-demo"
# No retention and no grace period: a demonstration cannot wait for a week.
SETTINGS = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "orphan_older_than_hours": "0"}
# Object stores record times in whole seconds.
_SECONDS_UNTIL_OLD = 1.5
_EXAMPLES = (
    f"history {NAMESPACE}.clicks --catalog {CATALOG}",
    f"verify {NAMESPACE}.clicks --catalog {CATALOG}",
    f"plan {NAMESPACE}.events --catalog {CATALOG}",
    f"report --catalog {CATALOG} --fresh '*' --output demo.html",
)


@dataclass(frozen=True, slots=True)
class TableStory:
    """One table before and after."""

    table: MessyTable
    before: Figures
    after: Figures
    rows_before: Contents
    rows_after: Contents
    outcome: PassOutcome | None

    @property
    def same_rows(self) -> bool:
        return self.rows_before == self.rows_after

    @property
    def ok(self) -> bool:
        return self.same_rows and self.outcome is not None and self.outcome.status is PassStatus.SUCCEEDED

    def to_json(self) -> dict[str, Any]:
        return {
            "table": f"{NAMESPACE}.{self.table.name}",
            "mess": self.table.mess,
            "status": None if self.outcome is None else self.outcome.status.value,
            "same_rows": self.same_rows,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "rows_before": _rows_json(self.rows_before),
            "rows_after": _rows_json(self.rows_after),
        }


def _rows_json(contents: Contents) -> dict[str, Any]:
    head, tagged = contents
    return {"head": asdict(head), "tagged": None if tagged is None else asdict(tagged)}


def run_demo(keep: Path | None, engine: EngineName, console: Console) -> dict[str, Any]:
    """Run the whole demonstration; everything that it starts and writes is removed at the end, except for ``keep``.

    Returns the document for ``--json``; ``ok``: every table was proposed and maintained, and its rows are unchanged.

    Raises:
        PolicyError: ``keep`` already holds something.
        StorageError: SeaweedFS or DuckDB is not installed, or does not work.
    """
    started = time.perf_counter()
    with _folder(keep) as folder, running_seaweedfs(folder / "bucket") as server:
        console.print(f"SeaweedFS serves a table bucket at {server.s3_endpoint} (process {server.pid})")
        server.create_table_bucket(BUCKET)
        console.print()
        console.print("Four tables, as streaming writers and crashed jobs leave them:")
        properties = server.catalog_properties(BUCKET)
        runtime = _runtime(properties, folder)
        tables = _make_mess(properties, console)
        before = {table.name: runtime.catalog.load(_name(table)) for table in tables}
        storage = Storage(properties)
        figures = {name: measure(loaded, storage) for name, loaded in before.items()}
        contents = _contents(tables, before, properties)
        time.sleep(_SECONDS_UNTIL_OLD)
        outcomes = _maintain(runtime, engine, console)
        after = {table.name: runtime.catalog.load(_name(table)) for table in tables}
        contents_after = _contents(tables, after, properties)
        stories = tuple(
            TableStory(
                table=table,
                before=figures[table.name],
                after=measure(after[table.name], storage),
                rows_before=contents[table.name],
                rows_after=contents_after[table.name],
                outcome=outcomes.get(f"{NAMESPACE}.{table.name}"),
            )
            for table in tables
        )
        seconds = time.perf_counter() - started
    is_ok = all(story.ok for story in stories)
    print_figures(console, [(s.table, s.before, s.after) for s in stories])
    print_contents(console, [(s.table, s.rows_before, s.rows_after) for s in stories])
    verdict = "Every table is healthy and holds the same rows as before" if is_ok else "Something is wrong, see above"
    console.print()
    console.print(f"{verdict} ({seconds:.0f} s).")
    if keep is None:
        sentence = f"To look around in the bucket, make it again and keep it: {_command()} demo --keep icekeeper-demo"
    else:
        sentence = f"The bucket is kept; look around with: {_command()} demo --explore {shlex.quote(str(keep))}"
    console.print(sentence, soft_wrap=True)
    return {"ok": is_ok, "seconds": round(seconds, 1), "tables": [story.to_json() for story in stories]}


def explore(folder: Path, console: Console) -> NoReturn:
    """Serve a kept bucket until interrupted, and say how to reach it.

    Raises:
        PolicyError: the folder holds no kept bucket.
    """
    if not (folder / "bucket").is_dir():
        raise PolicyError(f"{folder} holds no demonstration; make one with: icekeeper demo --keep {folder}")
    with running_seaweedfs(folder / "bucket") as server:
        for line in _environment(server, folder):
            console.print(line, soft_wrap=True)
        console.print()
        console.print("SeaweedFS serves the bucket until Ctrl-C. In another terminal paste the lines above, then try:")
        for example in _EXAMPLES:
            console.print(f"  {_command()} {example}", soft_wrap=True)
        while True:
            signal.pause()


def _command() -> str:
    """How a shell in any folder calls this program: ``make demo`` runs it without a command on the path."""
    if shutil.which("icekeeper"):
        return "icekeeper"
    called = Path(sys.argv[0])
    if called.name == "icekeeper":
        return shlex.quote(str(called.absolute()))
    return f"{shlex.quote(sys.executable)} -m icekeeper"


def _environment(server: SeaweedFSServer, folder: Path) -> Iterator[str]:
    yield f"export ICEKEEPER_STATE={shlex.quote(str(folder.absolute() / 'state.db'))}"
    for key, value in {"type": "rest", **server.catalog_properties(BUCKET)}.items():
        # PyIceberg reads __ as a dot and _ as a dash.
        name = key.upper().replace(".", "__").replace("-", "_")
        yield f"export PYICEBERG_CATALOG__{CATALOG.upper()}__{name}={shlex.quote(value)}"


def _make_mess(properties: Mapping[str, str], console: Console) -> list[MessyTable]:
    catalog = load_catalog(CATALOG, **properties)
    tables = []
    for table in create_messy_tables(catalog, Storage(properties)):
        tables.append(table)
        console.print(f"  {NAMESPACE}.{table.name}: {table.mess}")
    return tables


def _maintain(runtime: Runtime, engine: EngineName, console: Console) -> dict[str, PassOutcome]:
    report = runtime.detect(SETTINGS, unsafe=True)
    console.print()
    console.print(
        "What detection finds, with no retention and no grace period, as a demonstration cannot wait for a week:",
        soft_wrap=True,
    )
    print_detection(console, detection_json(runtime.catalog.id.name, report), show_all=True)
    console.print()
    console.print("One maintenance pass over each:")
    outcomes = {}
    with open_engine(engine) as started:
        for number, proposal in enumerate(report.proposals):
            if number:
                console.print()
            outcome = runtime.maintain(TableName.parse(proposal.table), SETTINGS, started, unsafe=True)
            print_outcome(console, outcome)
            outcomes[proposal.table] = outcome
    return outcomes


def _contents(
    tables: Sequence[MessyTable], loaded: Mapping[str, LoadedTable], properties: Mapping[str, str]
) -> dict[str, Contents]:
    found = read_contents([(loaded[table.name], table.tag) for table in tables], properties)
    return {table.name: contents for table, contents in zip(tables, found, strict=True)}


def _name(table: MessyTable) -> TableName:
    return TableName((NAMESPACE,), table.name)


def _runtime(properties: Mapping[str, str], folder: Path) -> Runtime:
    catalog = open_catalog(CATALOG, properties)
    return Runtime(catalog, SqliteStateStore(folder / "state.db"), environment={})


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A temporary folder, which is removed at the end, also when the process is terminated; or the folder ``keep``."""
    # A proxy must not be used for loopback, and a terminated process must still stop its server.
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    is_terminated = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal is_terminated
        is_terminated = True
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, terminate)
    folder = Path(tempfile.mkdtemp(prefix="icekeeper-demo-")) if keep is None else keep
    try:
        if keep is not None:
            _take(keep)
        (folder / "bucket").mkdir()
        yield folder
        if is_terminated:  # Python ignores an exit raised inside a callback, such as one of imports
            sys.exit(128 + signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _take(keep: Path) -> None:
    try:
        keep.mkdir(parents=True, exist_ok=True)
        occupied = any(keep.iterdir())
    except OSError as error:
        raise PolicyError(f"--keep {keep} cannot be used as a folder: {error.strerror}") from error
    if occupied:
        raise PolicyError(f"--keep {keep} is not empty; name a new folder")
