"""Hostile bytes end in an error of ours or in the right answer, with 512 MB and in ten seconds (rule 275, rule 276).

A table's own files, a neighbour's, a report of somebody else: whoever may write one of them must not stop the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hostile.child import FAMILIES, MOST_SECONDS, tried

NAMED = {
    "sketch": {"StatisticsFileUnusable"},
    "Avro rows": {"FileUnreadable"},
    "Parquet rows": {"FileUnreadable"},
    "Parquet footer": {"CannotCopy"},
    "ORC rows": {"FileUnreadable"},
    "policy file": {"PolicyError"},
    "inventory": {"PolicyError"},
    "S3 Inventory": {"PolicyError", "MetadataUnreadable"},
    "control document": {"StorageError", "MetadataUnreadable"},
    "state item": {"StorageError", "MetadataUnreadable"},
    "state file": {"StorageError"},
}
"""What a parser raises, where it is not ``MetadataUnreadable``."""
ANSWERED = {
    "metadata.json": {"60 MB of one wide character", "UTF-16", "a key that stands twice"},
    "manifest list": {"many blocks of nulls"},
    "manifest": {"many blocks of nulls", "1,000 fields of many layouts"},
    "Puffin": {"a number of 4,000 digits"},
    "Avro rows": {"many blocks of nulls", "20,000 fields"},
    "inventory": {"the year 1", "a nul", "another column"},
    "state file": {  # a request that is none is passed over
        *("settings that are a number", "settings with a lone surrogate"),
        *("settings in each other", "settings with a number of 5,000 digits"),
    },
}
"""What is odd, and means something all the same."""
TOO_LARGE = ("GB of", "60 MB of empty", "60 MB of files", "2^32 positions", "15,000,000", "300 MB", "10,000,000 blobs")


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_bytes_end_in_a_named_error_or_an_answer(family: str, tmp_path: Path) -> None:
    ended = tried(family, tmp_path)
    wrong = [
        one
        for one in ended
        if one.error
        not in ({""} if one.case in ANSWERED.get(one.group, ()) else NAMED.get(one.group, {"MetadataUnreadable"}))
    ]
    assert wrong == []
    assert {one.group for one in ended} == set(FAMILIES[family])
    assert [one for one in ended if one.seconds > MOST_SECONDS / 2 or "\n" in one.told] == []
    bombs = [one for one in ended if one.case.startswith(TOO_LARGE) and one.group != "inventory"]
    assert [
        one
        for one in bombs
        if "if it is honest, set ICEKEEPER_MAX_UNPACKED_MB (MaxUnpackedMb of the stack) to more" not in one.told
    ] == []
