"""Files that a pass could not read, in the state table: in a table's own partition, which detection reads with one
query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.dynamodb.batches import delete_all, put_all
from icekeeper.state.dynamodb.items import Item, sort_key, table_key
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import UnreadableFile

__all__ = ["DynamoUnreadableFiles", "unreadable_files_of"]

# Of tables that are gone; a file that is still there is found again.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoUnreadableFiles:
    """A :class:`icekeeper.state.store.UnreadableFileStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def record(self, identity: TableIdentity, files: Iterable[UnreadableFile]) -> None:
        put_all(
            self._table,
            (
                {
                    "pk": table_key(identity),
                    "sk": sort_key(_prefix(identity), one.path),
                    "path": one.path,
                    "why": one.why,
                    "schema_digest": one.schema_digest,
                    "tried_ms": one.tried_ms,
                    "expires_s": self._table.expires_s(_KEPT_MS, at_least_ms=one.tried_ms),
                }
                for one in files
            ),
        )

    def of_table(self, identity: TableIdentity) -> Mapping[str, UnreadableFile]:
        return unreadable_files_of(identity, self._table.query(table_key(identity), _prefix(identity)))

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        delete_all(self._table, ((table_key(identity), sort_key(_prefix(identity), path)) for path in paths))


def unreadable_files_of(identity: TableIdentity, items: Iterable[Item]) -> dict[str, UnreadableFile]:
    """The files of one copy of a table among the items of its partition, by path."""
    return {
        item["path"]: UnreadableFile(
            path=item["path"], why=item["why"], schema_digest=item["schema_digest"], tried_ms=item["tried_ms"]
        )
        for item in items
        if item["sk"].startswith(_prefix(identity))
    }


def _prefix(identity: TableIdentity) -> str:
    return f"now#unreadable#{sha256(identity.place.encode()).hexdigest()}#"
