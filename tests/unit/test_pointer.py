"""What becomes of a staged document when a pointer catalog says no: it goes only when the pointer proves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.pointer import PointerCatalog, commit_document, load_document
from icekeeper.errors import CommitConflict, CommitRefused, CommitStateUnknown, MaintenanceError, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import render_document
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from support.maintained_table import NAME
from support.tables import new_document

NOES = [CommitConflict("no"), CommitRefused("no")]


@dataclass
class Pointer:
    """A catalog of one table; ``instead`` is what it does when it is asked to swap."""

    folder: Path
    at: str = ""
    storage: Storage = field(default_factory=lambda: Storage({}))
    loads: int = 0
    broken: Exception | None = None
    shown: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        location = self.folder.as_uri()
        self.at = f"{location}/metadata/00000-first.metadata.json"
        self.storage.write(self.at, render_document(TableMetadata(new_document(location, 2))))

    def load(self, table: TableName) -> LoadedTable:
        self.loads += 1
        if self.broken is not None:
            raise self.broken
        at = self.shown.pop(0) if self.shown else self.at
        return LoadedTable(table, load_document(self.storage, at), at, at, {})

    def swap(self, location: str) -> str:
        self.at = location
        return location

    def commit(self, base: LoadedTable, swap: Callable[[str], str], **more: Any) -> LoadedTable:
        updates = [{"action": "set-properties", "updates": {"a": swap.__qualname__}}]
        catalog = PointerCatalog(storage=self.storage, load=self.load, clock=lambda: 1, **more)
        return commit_document(catalog, base, [], updates, swap=swap)

    def documents(self) -> int:
        return len(list(self.folder.rglob("*.metadata.json")))


@pytest.fixture
def pointer(tmp_path: Path) -> Pointer:
    return Pointer(tmp_path)


@pytest.mark.parametrize("no", NOES)
def test_what_was_swapped_is_the_table_whatever_was_said(pointer: Pointer, no: MaintenanceError) -> None:
    def swap_and_say_no(location: str) -> str:
        pointer.swap(location)
        raise no

    after = pointer.commit(pointer.load(NAME), swap_and_say_no)
    assert after.metadata_location == pointer.at
    assert load_document(pointer.storage, pointer.at).document == after.metadata.document


@pytest.mark.parametrize("no", NOES)
def test_what_others_have_built_upon_already_was_swapped(pointer: Pointer, no: MaintenanceError) -> None:
    def swap_be_overtaken_and_say_no(location: str) -> str:
        pointer.swap(location)
        pointer.commit(pointer.load(NAME), pointer.swap)
        raise no

    after = pointer.commit(pointer.load(NAME), swap_be_overtaken_and_say_no)
    assert after.metadata_location == pointer.at
    assert pointer.documents() == 3


@pytest.mark.parametrize("no", NOES)
@pytest.mark.parametrize("overtaken", [False, True])
def test_what_the_pointer_disproves_is_taken_away(pointer: Pointer, no: MaintenanceError, overtaken: bool) -> None:
    def say_no(location: str) -> str:
        if overtaken:
            pointer.commit(pointer.load(NAME), pointer.swap)
        raise no

    with pytest.raises(type(no)) as raised:
        pointer.commit(pointer.load(NAME), say_no)
    # Where the pointer did not move, the document stays: who looks again decides about it.
    assert pointer.documents() == 2
    if isinstance(raised.value, CommitRefused):
        assert len(raised.value.left) == 1 - overtaken
        pointer.storage.delete(raised.value.left)
        assert pointer.documents() == 1 + overtaken


@pytest.mark.parametrize("no", NOES)
def test_a_reader_that_lags_after_a_no_proves_nothing(pointer: Pointer, no: MaintenanceError) -> None:
    """Our swap was repeated on its way, so that it met itself; or carried out, and answered with a refusal."""
    before = pointer.at

    def swap_and_lag(location: str) -> str:
        pointer.swap(location)
        pointer.shown = [before]
        raise no

    with pytest.raises(type(no)):
        pointer.commit(pointer.load(NAME), swap_and_lag)
    assert pointer.load(NAME).metadata_location != before


@pytest.mark.parametrize("no", NOES)
def test_in_doubt_the_document_stays(pointer: Pointer, no: MaintenanceError) -> None:
    base = pointer.load(NAME)

    def say_no_and_break(location: str) -> str:
        pointer.broken = StorageError("down")
        raise no

    with pytest.raises(CommitStateUnknown, match="cannot be read to make sure of it: down"):
        pointer.commit(base, say_no_and_break)
    assert pointer.documents() == 2
    pointer.broken = None

    def be_overtaken_beyond_the_log(location: str) -> str:
        location_of_table = pointer.folder.as_uri()
        pointer.at = f"{location_of_table}/metadata/00009-other.metadata.json"
        pointer.storage.write(pointer.at, render_document(TableMetadata(new_document(location_of_table, 2))))
        raise no

    with pytest.raises(CommitStateUnknown, match="log reaches back no further"):
        pointer.commit(base, be_overtaken_beyond_the_log)
    assert pointer.documents() == 4


def test_a_conflict_that_is_a_proof_and_what_was_never_sent_need_no_look(pointer: Pointer) -> None:
    base = pointer.load(NAME)
    for error, more in ((CommitConflict("no"), {"conflict_is_proof": True}), (StorageError("never sent"), {})):

        def fail(location: str, error: Exception = error) -> str:
            raise error

        with pytest.raises(type(error)):
            pointer.commit(base, fail, **more)
    assert (pointer.loads, pointer.documents()) == (1, 1)
