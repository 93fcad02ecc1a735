"""The picture of the report page: ``PYTHONPATH=tests python -m benchmarks.report_page docs/report.png``.

Writes tables into a local catalog, as loading jobs would within three weeks, lets Icekeeper maintain most of them, and
takes a picture of the page that ``icekeeper report`` writes of them, with one table folded out.  Commits of loading
jobs have the times of these weeks; passes have the time of now.  Chromium must be installed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import snapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, DateType, LongType, NestedField

from icekeeper.cli.app import main as icekeeper
from support.browser import chromium

_SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "day", DateType()), NestedField(3, "body", BinaryType())
)
_BY_DAY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
_ARROW = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("body", pa.binary())])
_DAYS = 21
# Table → appends a day, and whether a pass maintains it before the picture is taken.
_TABLES = {
    "finance.invoices": (1, True),
    "finance.ledger": (1, True),
    "iot.readings": (3, True),
    "shop.carts": (2, True),
    "shop.clicks": (4, False),
    "shop.customers": (1, True),
    "shop.events": (3, True),
    "shop.orders": (2, True),
    "shop.returns": (1, True),
    "web.pages": (1, True),
    "web.sessions": (3, False),
    "web.visits": (2, True),
}
_OPENED = "shop.events"
_MISTAKEN = "finance.ledger"
_FOLD_OUT_FIRST = """
    const one = [...document.querySelectorAll('.name button')].find((button) => button.textContent === arguments[0]);
    const row = one.closest('tr');
    one.click();
    row.parentNode.prepend(row, row.nextSibling);
    return row.nextSibling.getBoundingClientRect().bottom"""
_SETTINGS = {"ICEKEEPER_TARGET_FILE_SIZE_MB": "1", "ICEKEEPER_SNAPSHOT_RETENTION_HOURS": "240"}


@contextmanager
def _at(moment: datetime) -> Iterator[None]:
    """Inside the block, PyIceberg's snapshots have this time."""
    clock = vars(snapshots)["time"]
    vars(snapshots)["time"] = SimpleNamespace(time=moment.timestamp)
    try:
        yield
    finally:
        vars(snapshots)["time"] = clock


def _rows(random: Random, day: datetime) -> pa.Table:
    count = random.randint(20, 700)
    body = [random.randbytes(random.randint(100, 900)) for _ in range(count)]
    return pa.table({"id": range(count), "day": [day.date()] * count, "body": body}, schema=_ARROW)


def _fill(catalog: SqlCatalog, name: str, appends: int, random: Random) -> None:
    table = catalog.create_table(name, _SCHEMA, partition_spec=_BY_DAY)
    begin = datetime.now(UTC) - timedelta(days=_DAYS)
    for day in (begin + timedelta(days=number) for number in range(_DAYS)):
        for number in range(random.randint(1, 2 * appends)):
            with _at(day + timedelta(hours=2 * number)):
                table.append(_rows(random, day))
    if name == _MISTAKEN:
        with table.transaction() as change:
            change.set_properties({"icekeeper.strategy": "z-order"})
    head = table.current_snapshot()
    if name == _OPENED and head is not None and head.parent_snapshot_id is not None:
        table.manage_snapshots().create_tag(head.parent_snapshot_id, "audit").commit()


def _write_lake(folder: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
    os.environ |= {f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in properties.items()}
    os.environ |= {"ICEKEEPER_STATE": f"{folder}/state.db", **_SETTINGS}
    random = Random(3)
    with closing(SqlCatalog("lake", **properties)) as catalog:
        for namespace in sorted({name.split(".")[0] for name in _TABLES}):
            catalog.create_namespace(namespace)
        for name, (appends, _) in _TABLES.items():
            _fill(catalog, name, appends, random)
            (folder / name.replace(".", "/") / "data" / "left-by-a-crash.parquet").write_bytes(bytes(300_000))
    a_week_ago = time.time() - 7 * 86_400
    for path in folder.rglob("left-by-a-crash.parquet"):
        os.utime(path, (a_week_ago, a_week_ago))


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_page", description=__doc__)
    parser.add_argument("picture", type=Path)
    picture = parser.parse_args().picture
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write_lake(folder)
        for name in (name for name, (_, is_maintained) in _TABLES.items() if is_maintained):
            icekeeper(["maintain", name, "--catalog", "lake", "--engine", "local"])
        page = folder / "page.html"
        icekeeper(["report", "--catalog", "lake", "--fresh", "*", "--output", str(page)])
        with chromium(folder / "profile") as browser:
            browser.look(width=1280, height=2600)  # without a scroll bar
            browser.open(page)
            end = browser.run(_FOLD_OUT_FIRST, _OPENED)
            browser.screenshot(picture, height=round(end) + 8, scale=0.56)  # README may have 200 KB


if __name__ == "__main__":
    main()
