"""Refuses to drop deletes as dangling that name a live data file in another spelling (rule 177) (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from icekeeper.metadata.delete_scope import DeleteIndex
from icekeeper.model import FileKey
from icekeeper.rows.other_spellings import misspelled, other_spellings

__all__ = ["well_spelled"]


def well_spelled(needs: Mapping[FileKey, int], index: DeleteIndex, listed: Iterable[int]) -> Mapping[FileKey, int]:
    """``needs``: delete file → how many live data files need it, where none of those with 0 is misspelled.

    ``listed`` are the hashes of the paths of all live data files.

    Raises:
        MetadataUnreadable: a delete that none needs names one of these in another spelling.
    """
    named = [(path, entry) for path, entry in index.vectors.items()]
    named += [(path, entry) for path, entries in index.positions_by_path.items() for entry in entries]
    dangling = [(path, entry) for path, entry in named if needs[entry.file.key] == 0]
    spelled = {hash(other): (entry, path, other) for path, entry in dangling for other in other_spellings(path)}
    for number in listed if spelled else ():
        if number in spelled:
            entry, path, other = spelled[number]
            raise misspelled(entry.file.file_path, path, other)
    return needs
