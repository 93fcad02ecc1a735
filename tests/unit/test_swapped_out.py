"""On which state a commit was really made, as the metadata log of a later state tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.operations.expiry.leftovers import Swap, find_swap
from icekeeper.storage.storage import Storage
from support.tables import new_document, snapshot

SNAPSHOT = snapshot(1, format_version=2)


class History:
    """States 0, 1, …, each in a file of its own; each names the files of those before it, or only some of them."""

    def __init__(self, folder: Path, *, log_entries: int = 100) -> None:
        self._folder, self._log_entries = folder, log_entries
        self.states: list[LoadedTable] = []

    def commit(self, *, has_snapshot: bool) -> LoadedTable:
        log = [{"timestamp-ms": 0, "metadata-file": state.metadata_location} for state in self.states]
        document = new_document(
            self._folder.as_uri(),
            2,
            snapshots=[SNAPSHOT] if has_snapshot else [],
            **{"metadata-log": log[len(log) - self._log_entries :] if len(log) > self._log_entries else log},
        )
        path = self._folder / f"{len(self.states)}.metadata.json"
        path.write_text(json.dumps(document))
        state = LoadedTable(TableName.parse("ns.t"), TableMetadata(document), path.as_uri(), "", {})
        self.states.append(state)
        return state

    def file(self, number: int) -> Path:
        return self._folder / f"{number}.metadata.json"

    def swap(self, known: int | None = None) -> tuple[str, TableMetadata] | None:
        found = find_swap(
            self.states[-1],
            lambda then: 1 in then.snapshots,
            Storage({}),
            None if known is None else self.states[known],
        )
        return None if found is None else (found.location.rpartition("/")[2], found.after)


def made(folder: Path, *, before: int, after: int, log_entries: int = 100) -> History:
    history = History(folder, log_entries=log_entries)
    for number in range(before + after):
        history.commit(has_snapshot=number < before)
    return history


def test_the_state_that_the_commit_was_prepared_on_is_not_read(tmp_path: Path) -> None:
    history = made(tmp_path, before=2, after=1)
    history.file(1).unlink()
    base, now = history.states[1:]
    found = find_swap(now, lambda then: 1 in then.snapshots, Storage({}), base)
    assert found == Swap(base.metadata_location, base.metadata, now.metadata)


@pytest.mark.parametrize("log_entries", [100, 1], ids=["long log", "log of one"])
def test_it_is_the_last_one_with_the_snapshots_however_much_has_landed_since(tmp_path: Path, log_entries: int) -> None:
    history = made(tmp_path, before=3, after=5, log_entries=log_entries)
    swap = history.swap(known=1)
    assert swap is not None
    location, after = swap
    assert location == "2.metadata.json", "not the state that we knew"
    assert after.document == history.states[3].metadata.document


def test_a_log_that_is_empty_or_names_files_that_are_gone_tells_nothing(tmp_path: Path) -> None:
    assert made(tmp_path, before=0, after=1).swap() is None
    history = made(tmp_path, before=2, after=2)
    history.file(2).unlink()
    assert history.swap(known=1) is None


def test_a_state_that_cannot_be_parsed_is_no_answer(tmp_path: Path) -> None:
    history = made(tmp_path, before=2, after=2)
    history.file(2).write_text("{")
    with pytest.raises(MetadataUnreadable, match=r"2\.metadata\.json"):
        history.swap(known=1)
