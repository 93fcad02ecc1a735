"""Icekeeper: one operation of a pass over a table in a SQL catalog, from loading the table to the commit.

What counts is :meth:`Runtime.maintain`, as the command calls it; imports and the engine's start do not.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers.serve import Answer, Task, serve
from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.policy.keys import POLICY_KEYS
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore

TABLE = TableName(("ns",), "t")
"""In :func:`registered`'s catalog."""
_ENGINES = ExitStack()
_started: dict[str, Engine] = {}
_number = itertools.count()
OPERATIONS = {"sort": "compact", "zorder": "compact"}
"""A row's operation → ours, where the name is another one."""
_COPY_KEY, _NEVER = "min_row_group_copy_bytes", "none"
"""Row groups below so many bytes are decoded; by the latter all of them."""


def _engine(name: str) -> Engine:
    if name not in _started:
        if name == "spark":
            from icekeeper.engines.spark import SparkEngine, local_session

            _started[name] = SparkEngine(_ENGINES.enter_context(local_session()).sparkContext)
        elif name.startswith("executors-"):
            _started[name] = _ENGINES.enter_context(executors(int(name.removeprefix("executors-"))))
        else:
            _started[name] = LocalEngine()
    return _started[name]


@contextmanager
def executors(count: int) -> Iterator[Engine]:
    """A Spark cluster on this machine: executors of one core in processes of their own."""
    import pyspark
    from pyspark.sql import SparkSession

    from icekeeper.engines.spark import LOCAL_SETTINGS, SparkEngine, find_java_home

    os.environ |= {"JAVA_HOME": find_java_home(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master(f"local-cluster[{count},1,1024]").appName("icekeeper-benchmarks")
    for key, value in LOCAL_SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.config("spark.scheduler.mode", "FAIR").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield SparkEngine(session.sparkContext)
    finally:
        session.stop()
        # Where such a cluster's workers keep their logs, whatever is configured.
        shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)


def _known(settings: dict[str, str]) -> dict[str, str]:
    """Settings that this version has.

    Raises:
        ValueError: it lacks one.
    """
    for key in settings:
        if key not in POLICY_KEYS:
            raise ValueError(f"this version has no policy key {key}")
    return settings


def _copying(task: Task) -> dict[str, str]:
    """Whether row groups are copied where they can be: as by default, or never."""
    if "copy" not in task:
        return {}
    if task["copy"]:
        _known({_COPY_KEY: ""})
        return {}
    return {_COPY_KEY: _NEVER} if _COPY_KEY in POLICY_KEYS else {}


def registered(folder: Path, metadata_location: str) -> dict[str, str]:
    """The properties of a new SQL catalog that has the table."""
    from pyiceberg.catalog.sql import SqlCatalog  # and SQLAlchemy, which a pass over a REST catalog lacks

    home = metadata_location.rpartition("/metadata/")[0]
    properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": home}
    pyiceberg = SqlCatalog("bench", **properties)
    pyiceberg.create_namespace("ns")
    pyiceberg.register_table("ns.t", metadata_location)
    pyiceberg.close()
    return properties


def prepare(task: Task) -> Callable[[], Answer]:
    """Opens the catalog, a new one that has the table unless the task names one, with a state of its own."""
    folder = Path(task["scratch"]) / f"icekeeper-{next(_number)}"
    folder.mkdir(parents=True)
    if "catalog" in task:
        properties, table = dict(task["catalog"]), TableName.parse(task["table"])
    else:
        properties, table = registered(folder, task["metadata_location"]), TABLE
    runtime = Runtime(open_catalog("bench", properties), SqliteStateStore(folder / "state.db"), environment={})
    engine = _engine(task.get("engine", "local"))
    operation = str(task["operation"])
    settings = _known(
        {"operations": OPERATIONS.get(operation, operation), **task.get("settings", {}), **_copying(task)}
    )

    is_dry_run = bool(task.get("dry_run"))

    def run() -> Answer:
        outcome = runtime.maintain(table, settings, engine, dry_run=is_dry_run)
        if outcome.status.value != "succeeded":
            raise RuntimeError(outcome.summary)
        planned = [path for operation in outcome.operations for path in operation.files_planned]
        answer = {
            "metadata_location": runtime.catalog.load(table).metadata_location,
            "summary": outcome.summary,
            "planned": len(planned),
        }
        if is_dry_run:  # what proves a plan, which other rows need not pay for
            (folder / "planned").write_text("\n".join(planned))
            answer |= {"planned_files": str(folder / "planned"), "plan": outcome.operations[0].plan}
        return answer

    return run


if __name__ == "__main__":
    with _ENGINES:
        serve(prepare)
