"""What a store answers to a batch of deletions: no file counts as gone that may still be there (rule 185)."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from icekeeper.storage import s3
from icekeeper.storage.local_files import unlink
from icekeeper.storage.s3_objects import delete_objects

PATHS = ("s3://bucket/a", "s3://bucket/b")


def report(*answers: dict[str, Any]) -> Any:
    client = Mock()
    client.delete_objects.side_effect = answers
    return delete_objects(PATHS, lambda path: None, unlink, lambda: client, {})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.storage.s3.time.sleep", lambda seconds: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


def test_a_locked_object_is_told_and_the_others_are_gone() -> None:
    told = report({"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "object lock"}]})
    assert (told.deleted, told.failed) == (
        ("s3://bucket/b",),
        {"s3://bucket/a": "was refused by the store (AccessDenied: object lock)"},
    )


@pytest.mark.parametrize("entry", [{}, {"Key": "%61"}, {"Key": ""}], ids=["no key", "another spelling", "empty"])
def test_an_error_that_names_no_key_of_ours_is_one_of_all(entry: dict[str, str]) -> None:
    """It broke the operation, and what was deleted before came into no journal."""
    told = report({"Errors": [{**entry, "Code": "AccessDenied"}]})
    assert (told.deleted, told.failed.keys()) == ((), set(PATHS))
    busy = {"Errors": [{**entry, "Code": "SlowDown"}]}
    assert report(busy, {}).deleted == PATHS
    assert report(*[busy] * s3.DELETE_ATTEMPTS).transient == set(PATHS)


def test_an_answer_without_errors_is_a_success() -> None:
    assert report({"Errors": None}).deleted == PATHS
