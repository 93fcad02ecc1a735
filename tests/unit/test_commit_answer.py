"""What an answer to a commit proves: only the catalog's own words say no, and they say only that."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.catalogs.commit_answer import CommitAnswer, ErrorDocument, answer_of_rest, error_of, read_error
from icekeeper.errors import CatalogBusy, CommitConflict, CommitRefused, CommitStateUnknown, MaintenanceError
from icekeeper.model import TableName

OVERTAKEN = "can't add snapshot with sequence number 3, must be > than last sequence number 4"
# Status, type of the error document (none: the body holds none), and what it says.
ANSWERS: list[tuple[int, str | None, CommitAnswer]] = [
    (200, None, CommitAnswer.LANDED),
    (204, None, CommitAnswer.LANDED),
    (200, "CommitStateUnknownException", CommitAnswer.UNKNOWN),
    *((status, None, CommitAnswer.UNKNOWN) for status in (301, 302, 303, 304, 307, 308)),
    (301, "MovedException", CommitAnswer.UNKNOWN),
    *((status, None, CommitAnswer.UNKNOWN) for status in (400, 401, 403, 404, 408, 409, 412, 419, 429)),
    *((status, "SomeException", CommitAnswer.REFUSED) for status in (400, 401, 403, 404, 405, 406, 412, 413, 419)),
    (408, "RequestTimeoutException", CommitAnswer.UNKNOWN),
    (409, "CommitFailedException", CommitAnswer.CONFLICT),
    (429, "TooManyRequestsException", CommitAnswer.BUSY),
    *((status, None, CommitAnswer.UNKNOWN) for status in (500, 501, 502, 503, 504, 507, 599)),
    *((status, "ServiceFailureException", CommitAnswer.UNKNOWN) for status in (500, 501, 502, 503, 504)),
    (501, "NotImplementedException", CommitAnswer.REFUSED),
    (501, "UnsupportedOperationException", CommitAnswer.REFUSED),
    *((status, "CommitStateUnknownException", CommitAnswer.UNKNOWN) for status in (400, 404, 409, 429, 500, 501)),
    (100, "SomeException", CommitAnswer.UNKNOWN),
    (600, "SomeException", CommitAnswer.UNKNOWN),
]


@pytest.mark.parametrize(("status", "kind", "expected"), ANSWERS)
def test_what_a_rest_catalog_says(status: int, kind: str | None, expected: CommitAnswer) -> None:
    error = None if kind is None else ErrorDocument("no", kind, status)
    assert answer_of_rest(status, error) is expected


def test_what_overtook_us_is_a_conflict_by_its_words() -> None:
    assert answer_of_rest(400, ErrorDocument(OVERTAKEN, "BadRequestException", 400)) is CommitAnswer.CONFLICT
    assert answer_of_rest(404, ErrorDocument(OVERTAKEN, "NotFoundException", 404)) is CommitAnswer.REFUSED


@pytest.mark.parametrize("status", [400, 403, 404, 409, 429, 501])
def test_a_status_that_is_not_the_documents_own_proves_nothing(status: int) -> None:
    """A gateway that puts its own status over a catalog's error."""
    assert answer_of_rest(status, ErrorDocument("no", "UnsupportedException", 500)) is CommitAnswer.UNKNOWN
    assert answer_of_rest(status, ErrorDocument("no", "UnsupportedException")) is not CommitAnswer.UNKNOWN


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "m", "type": "T", "code": 404}}, ErrorDocument("m", "T", 404)),
        ({"error": {"message": "m", "type": "T", "code": 404, "stack": ["a"]}}, ErrorDocument("m", "T", 404)),
        ({"error": {"message": "m", "type": "T"}}, ErrorDocument("m", "T")),
        ({"error": {"message": "m", "type": "T", "code": "500"}}, ErrorDocument("m", "T", 500)),
        ({"error": {"message": "m", "type": "T", "code": "no"}}, ErrorDocument("m", "T")),
        ({"error": {"message": "m", "code": 404}}, None),
        ({"error": {"type": "T", "code": 404}}, None),
        ({"error": "not found"}, None),
        ({"error": {"message": {}, "type": "T"}}, None),
        ({"message": "Too Many Requests"}, None),
        ({}, None),
        ([], None),
        ("no", None),
        (None, None),
    ],
)
def test_what_is_an_error_document(body: Any, expected: ErrorDocument | None) -> None:
    assert read_error(body) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CommitAnswer.CONFLICT, CommitConflict),
        (CommitAnswer.REFUSED, CommitRefused),
        (CommitAnswer.BUSY, CatalogBusy),
        (CommitAnswer.UNKNOWN, CommitStateUnknown),
    ],
)
def test_each_answer_has_its_error_in_the_catalogs_words(
    answer: CommitAnswer, expected: type[MaintenanceError]
) -> None:
    error = error_of(answer, TableName(("ns",), "t"), "catalog lake said so")
    assert type(error) is expected
    assert str(error).startswith("ns.t: ")
    assert "catalog lake said so" in str(error)
