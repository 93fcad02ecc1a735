"""Every error Icekeeper raises on purpose, in one tree.

::

    MaintenanceError
    ├── PolicyError            the input is wrong: unknown key, table, catalog, malformed value (exit code 2)
    │   └── RequestRefused     a request for a pass asks for more than the table's policy
    ├── TableUnsupported       a legal table that this version must not touch
    ├── PlanStale              the table moved in a way the plan cannot follow: plan again
    ├── CommitConflict         another writer won the swap: reload, revalidate, retry
    ├── CommitStateUnknown     the swap was sent, its outcome is not known: resolve by run id
    ├── OperationRefused       a guard saw danger: nothing was deleted
    │   ├── LeaseHeld          another run maintains the table now: wait, or come back
    │   ├── FleetBusy          as many tables are maintained now as may be at once: wait
    │   └── LeaseLost          this run was too slow and another one took its turn: nothing was committed
    └── StorageError           an object or endpoint could not be read or written
        ├── PartlyListed       a catalog may not list all of its tables: those that it may were given
        ├── CommitRefused      a catalog answered that it does not commit: the newest head has the last word
        │   └── CatalogBusy    … because of load: try again later
        ├── LocationRefused    a path outside of where the table may have files: it was not touched
        ├── FileUnreadable     a file with rows is missing, damaged, or not as the table's metadata say
        ├── RowsNotKept        what was written does not hold the rows that were read: it is kept for inspection
        ├── OutputUnproved     a store failed while what was written was read back: nothing was committed
        └── MetadataUnreadable a metadata file, manifest list or manifest is missing or damaged

No state machine sees a ``CommitRefused``: the commit loop looks at the newest head and, if the commit is not there,
raises ``StorageError`` in the catalog's own words.

"Nothing to do" is an outcome (:class:`icekeeper.model.Nothing`), never an error.  The message is always one
sentence for a person, and says what to do where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from icekeeper.text import masked_sentence


class MaintenanceError(Exception):
    """Root of the tree; ``type(error).__name__`` is the name that state machines catch.

    Secrets that this process was given are masked in the message, also where it quotes a library, and a very long one
    is cut in the middle.
    """

    def __init__(self, *told: object) -> None:
        super().__init__(*(masked_sentence(one) if isinstance(one, str) else one for one in told))


class PolicyError(MaintenanceError):
    """The caller's input is wrong and must be corrected; nothing was read or changed.

    ``hint`` gives words to put behind the message where a person reads it; it may list a catalog.
    """

    def __init__(self, *told: object, hint: Callable[[], str] = str) -> None:
        super().__init__(*told)
        self.hint = hint


class RequestRefused(PolicyError):
    """A request for a pass asks for more than the table's policy, and the deployment does not admit it."""


class TableUnsupported(MaintenanceError):
    """The table is legal, but this version of Icekeeper must leave it alone."""


class PlanStale(MaintenanceError):
    """The table changed so that no part of the plan applies any more; plan again."""


class CommitConflict(MaintenanceError):
    """The catalog holds another state than the commit was based on; nothing was changed."""


class CommitStateUnknown(MaintenanceError):
    """The commit was sent and may or may not have landed; staged files must be kept."""


class OperationRefused(MaintenanceError):
    """A safety guard stopped the operation before it deleted anything."""


class LeaseHeld(OperationRefused):
    """Another run holds the lease; nothing was begun."""


class FleetBusy(OperationRefused):
    """As many tables are maintained now as the deployment allows at once; nothing was begun."""


class LeaseLost(OperationRefused):
    """The lease ran out and another run took it; nothing more may be committed."""


class StorageError(MaintenanceError):
    """An object store or endpoint did not do what was asked.

    ``pointer`` is the metadata file that a catalog's entry names, where that is what could not be read.
    """

    pointer: str | None = None


class PartlyListed(StorageError):
    """A catalog has listed its tables but for some places that must not be looked into; raised after all the others.

    ``hidden`` are the namespaces whose own tables were not listed; empty: which ones is not known.
    """

    def __init__(self, *told: object, hidden: Sequence[tuple[str, ...]] = ()) -> None:
        super().__init__(*told)
        self.hidden = tuple(hidden)


class CommitRefused(StorageError):
    """A catalog answered a commit with a refusal; it may have carried the commit out nevertheless.

    ``left`` are files that the swap itself has staged; the commit loop deletes them once it believes the refusal.
    """

    def __init__(self, *told: object, left: Sequence[str] = ()) -> None:
        super().__init__(*told)
        self.left = tuple(left)


class CatalogBusy(CommitRefused):
    """A catalog refused a commit because of load."""


class LocationRefused(StorageError):
    """A table names a path outside of where it may have files; nothing was read, written or deleted there."""


class RowsNotKept(StorageError):
    """Written files do not hold the rows that were read; nothing refers to them.

    ``problem`` says in words how they differ, ``kept`` are the paths of the files that stay where they are.
    """

    def __init__(self, problem: str, kept: Sequence[str]) -> None:
        paths = ", ".join(kept) or "nothing"
        super().__init__(f"rows were not kept: {problem}; {paths} was written and is kept for inspection")
        self.problem = problem


class OutputUnproved(StorageError):
    """A store failed before it was known whether written files hold the rows that were read; nothing refers to them."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"the output could not be proved, nothing was committed: {reason}")


class FileUnreadable(StorageError):
    """A data or delete file, the one at ``path``, is not there, or cannot be read as rows of the table.

    Never raised for a store that fails: that says nothing of the file.
    """

    def __init__(self, *told: object, path: str) -> None:
        super().__init__(*told)
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., FileUnreadable], tuple[tuple[object, ...], str]]:
        return _unreadable, (self.args, self.path)  # the path survives the way out of a worker


def _unreadable(told: tuple[object, ...], path: str) -> FileUnreadable:
    return FileUnreadable(*told, path=path)


class MetadataUnreadable(StorageError):
    """A metadata JSON, manifest list or manifest is missing or cannot be parsed."""


def is_gone(error: BaseException) -> bool:
    """Whether a file could not be read because it is not there any more: then there is nothing that it protects."""
    failed: BaseException | None = error
    while failed is not None and not isinstance(failed, FileNotFoundError):
        failed = failed.__cause__
    return failed is not None


def _tree(root: type[MaintenanceError]) -> Iterator[type[MaintenanceError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _tree(kind)


ERROR_NAMES = frozenset(kind.__name__ for kind in _tree(MaintenanceError))
"""The names of all errors of this tree, as state machines catch them."""
