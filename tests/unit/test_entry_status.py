"""An entry of a status that does not exist makes its manifest unreadable, for everyone who reads entries."""

from __future__ import annotations

import re

import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.manifest_read import entry_status
from icekeeper.model import EntryStatus


def test_the_statuses_of_the_specification_are_known() -> None:
    assert [entry_status(code, "m.avro") for code in (0, 1, 2)] == [
        EntryStatus.EXISTING,
        EntryStatus.ADDED,
        EntryStatus.DELETED,
    ]


@pytest.mark.parametrize("code", [-1, 3, 2**40])
def test_another_one_is_told_with_the_manifest(code: int) -> None:
    told = re.escape(f"manifest m.avro holds an entry of status {code}, which does not exist")
    with pytest.raises(MetadataUnreadable, match=f"^{told}$"):
        entry_status(code, "m.avro")
