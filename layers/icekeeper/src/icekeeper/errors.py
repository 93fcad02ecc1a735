"""All errors that Icekeeper raises on purpose, in one tree.

::

    MaintenanceError
    ├── PolicyError            the input is wrong, such as a malformed value (exit code 2)
    │   ├── TableNotFound      the catalog has no such table
    │   ├── CatalogNotFound    PyIceberg's configuration has no such catalog
    │   ├── UnknownSetting     there is no such policy key
    │   ├── StepRefused        an event names a step that this function must not do
    │   └── RequestRefused     a request for a pass asks for more than the table's policy allows
    ├── TableUnsupported       the table is legal, but this version must not touch it
    ├── PlanStale              the table changed so that the plan no longer applies: plan again
    ├── CommitConflict         another writer committed first: reload, revalidate, retry
    ├── CommitStateUnknown     the commit was sent and its outcome is unknown: resolve by run id
    ├── SwitchedOff            the table was paused, or a switch was set to false, while the operation ran
    ├── OperationRefused       a guard saw danger: nothing was deleted
    │   ├── DeletionsWait      another table, which may need the files, cannot be read
    │   ├── LeaseHeld          another run maintains the table now: try again later
    │   │   └── TableBusy      … and this run is to wait for its turn
    │   ├── FleetBusy          the deployment maintains its maximum number of tables now: wait
    │   └── LeaseLost          this run's lease expired and another run took it: nothing was committed
    └── StorageError           an object or endpoint could not be read or written
        ├── PartlyListed       the catalog did not allow some namespaces to be listed; all others were returned
        ├── CommitRefused      the catalog refused the commit: read the newest head to be sure
        │   └── CatalogBusy    … because of load: try again later
        ├── LocationRefused    a path is outside the table's allowed locations: it was not touched
        ├── FileUnreadable     a data or delete file is missing, damaged, or contradicts the table's metadata
        ├── RowsNotKept        the output does not hold the rows that were read: it is kept for inspection
        ├── OutputUnproved     the store failed while the output was read back: nothing was committed
        └── MetadataUnreadable a metadata file, manifest list or manifest is missing or damaged

State machines never see ``CommitRefused``: the commit loop reads the newest head and, if the commit is not there,
raises ``StorageError`` with the catalog's message.

"Nothing to do" is an outcome (:class:`icekeeper.model.Nothing`), never an error.  A message is one sentence for a
person, and says what to do where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from icekeeper.text import masked_sentence


class MaintenanceError(Exception):
    """Root of the tree; ``type(error).__name__`` is the name that state machines catch.

    The message has the process's secrets masked, also where it quotes a library.  A very long message is cut in the
    middle.
    """

    page: ClassVar[str] = ""
    """The page of ``icekeeper docs`` that says what to do; empty: the message says it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(masked_sentence(argument) if isinstance(argument, str) else argument for argument in args))


class PolicyError(MaintenanceError):
    """The caller's input is wrong and must be corrected; nothing was read or changed.

    ``hint`` returns text that is shown behind the message to a person; calling it may list a catalog.
    """

    def __init__(self, *args: object, hint: Callable[[], str] = str) -> None:
        super().__init__(*args)
        self.hint = hint


class TableNotFound(PolicyError):
    """The catalog reports no Iceberg table of this name; it may also hide a table from this user."""


class CatalogNotFound(PolicyError):
    """No catalog of this name is configured."""

    page = "catalogs"


class UnknownSetting(PolicyError):
    """There is no policy key of this name."""

    page = "policy"


class StepRefused(PolicyError):
    """An event names a step of another function; nothing was read."""


class RequestRefused(PolicyError):
    """A request for a pass asks for more than the table's policy, and the deployment does not allow that."""


class TableUnsupported(MaintenanceError):
    """The table is legal, but this version of Icekeeper must leave it alone."""


class PlanStale(MaintenanceError):
    """The table changed so that no part of the plan applies; plan again."""


class CommitConflict(MaintenanceError):
    """The catalog holds a different state than the commit was based on; nothing was changed."""


class CommitStateUnknown(MaintenanceError):
    """The commit was sent and may or may not have landed; staged files must be kept."""

    page = "recovery"


class SwitchedOff(MaintenanceError):
    """The table's properties stop an operation that has begun; nothing more is committed or deleted."""


class OperationRefused(MaintenanceError):
    """A safety guard stopped the operation before it deleted anything."""


class DeletionsWait(OperationRefused):
    """Another table, which may need files of this table, cannot be read; nothing was deleted."""


class LeaseHeld(OperationRefused):
    """Another run holds the lease; nothing was started."""


class TableBusy(LeaseHeld):
    """Another run holds the lease, and this run is to wait for it: try again later."""


class FleetBusy(OperationRefused):
    """The deployment maintains as many tables as it allows at once; nothing was started."""


class LeaseLost(OperationRefused):
    """The lease expired and another run took it; this run must not commit any more."""


class StorageError(MaintenanceError):
    """A request to an object store or endpoint failed.

    ``pointer`` is the metadata file that the catalog's entry names, if that file could not be read.
    """

    pointer: str | None = None


class PartlyListed(StorageError):
    """A catalog did not allow some namespaces to be listed; raised after all other tables were returned.

    ``hidden`` are the namespaces whose own tables were not listed; empty if they are not known.
    """

    def __init__(self, *args: object, hidden: Sequence[tuple[str, ...]] = ()) -> None:
        super().__init__(*args)
        self.hidden = tuple(hidden)


class CommitRefused(StorageError):
    """A catalog refused a commit; it may have applied the commit nevertheless.

    ``left`` are the files that the commit staged.  The commit loop deletes them once the newest head shows that the
    commit is absent.
    """

    def __init__(self, *args: object, left: Sequence[str] = ()) -> None:
        super().__init__(*args)
        self.left = tuple(left)


class CatalogBusy(CommitRefused):
    """A catalog refused a commit because of load."""


class LocationRefused(StorageError):
    """A table names a path outside its allowed locations; nothing was read, written or deleted there."""

    page = "deletion"


class RowsNotKept(StorageError):
    """Output files do not hold the rows that were read; no metadata refers to them.

    ``problem`` says how they differ; ``kept`` are the paths of the output files, which are not deleted.
    """

    page = "recovery"

    def __init__(self, problem: str, kept: Sequence[str]) -> None:
        paths = ", ".join(kept) or "nothing"
        super().__init__(f"rows were not kept: {problem}; {paths} was written and is kept for inspection")
        self.problem = problem


class OutputUnproved(StorageError):
    """A store failed before the rows of the output files could be checked; no metadata refers to the files."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"the output could not be proved, nothing was committed: {reason}")


class FileUnreadable(StorageError):
    """The data or delete file at ``path`` is missing, or cannot be read as rows of the table.

    A failed request to the store is a ``StorageError`` instead: it proves nothing about the file.
    """

    page = "recovery"

    def __init__(self, *args: object, path: str) -> None:
        super().__init__(*args)
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., FileUnreadable], tuple[tuple[object, ...], str]]:
        return _unreadable, (self.args, self.path)  # keeps ``path`` when a worker pickles the error


def _unreadable(args: tuple[object, ...], path: str) -> FileUnreadable:
    return FileUnreadable(*args, path=path)


class MetadataUnreadable(StorageError):
    """A metadata JSON, manifest list or manifest is missing or cannot be parsed."""

    page = "recovery"


def is_gone(error: BaseException) -> bool:
    """Whether a read failed because the file does not exist any more, so that it protects no other file."""
    failed: BaseException | None = error
    while failed is not None and not isinstance(failed, FileNotFoundError):
        failed = failed.__cause__
    return failed is not None


def is_damage(error: BaseException) -> bool:
    """Whether a read failed because the file is missing or damaged, and not because its store failed."""
    causes: list[BaseException] = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return is_gone(error) or all(
        isinstance(cause, MetadataUnreadable) for cause in causes if isinstance(cause, StorageError)
    )


def _tree(root: type[MaintenanceError]) -> Iterator[type[MaintenanceError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _tree(kind)


ERROR_NAMES = frozenset(kind.__name__ for kind in _tree(MaintenanceError))
"""The names of all errors of the tree, as state machines catch them."""
