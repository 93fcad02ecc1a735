"""What every store of requests does: one pending per table, a repeat refreshes it, one claim takes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import MaintenanceRequest, RequestStore
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, OpenStore


def a_request(requested_ms: int, identity: TableIdentity = IDENTITY, **settings: str) -> MaintenanceRequest:
    return MaintenanceRequest(identity=identity, requested_ms=requested_ms, settings=settings)


def pending(store: RequestStore) -> tuple[MaintenanceRequest, ...]:
    return store.pending()


def test_nothing_is_requested_at_first(open_store: OpenStore) -> None:
    requests = open_store().requests
    assert pending(requests) == ()
    assert requests.claim(a_request(1)) is False


def test_a_request_waits_until_it_is_claimed_once(open_store: OpenStore) -> None:
    request = a_request(5, operations="compact", where="city = 'Zürich'")
    open_store().requests.file(request)
    assert pending(open_store().requests) == (request,)
    assert open_store().requests.claim(request) is True
    assert pending(open_store().requests) == ()
    assert open_store().requests.claim(request) is False


def test_a_repeat_takes_the_place_of_the_one_before(open_store: OpenStore) -> None:
    requests = open_store().requests
    requests.file(a_request(5, operations="compact"))
    requests.file(a_request(9))
    assert pending(requests) == (a_request(9),)


@pytest.mark.parametrize(
    "newer", [a_request(9, operations="compact"), a_request(5, operations="all")], ids=["later", "other settings"]
)
def test_whoever_read_the_old_one_cannot_take_the_new_one(open_store: OpenStore, newer: MaintenanceRequest) -> None:
    requests = open_store().requests
    old = a_request(5, operations="compact")
    requests.file(old)
    requests.file(newer)
    assert requests.claim(old) is False
    assert pending(requests) == (newer,)
    assert requests.claim(newer) is True


def test_a_request_after_a_claim_is_a_new_one(open_store: OpenStore) -> None:
    requests = open_store().requests
    requests.file(a_request(5))
    assert requests.claim(a_request(5)) is True
    requests.file(a_request(6))
    assert requests.claim(a_request(5)) is False
    assert pending(requests) == (a_request(6),)


def test_the_order_of_settings_does_not_matter(open_store: OpenStore) -> None:
    requests = open_store().requests
    requests.file(MaintenanceRequest(identity=IDENTITY, requested_ms=1, settings={"a": "1", "b": "2"}))
    assert requests.claim(MaintenanceRequest(identity=IDENTITY, requested_ms=1, settings={"b": "2", "a": "1"}))


def test_the_oldest_comes_first(open_store: OpenStore) -> None:
    requests = open_store().requests
    made = [
        a_request(requested_ms, replace(IDENTITY, table=TableName(("ns",), name), uuid=name))
        for name, requested_ms in (("b", 20), ("c", 10), ("a", 20), ("d", 1_000))
    ]
    for request in made:
        requests.file(request)
    assert [str(request.identity.table) for request in pending(requests)] == ["ns.c", "ns.a", "ns.b", "ns.d"]
    assert pending(requests) == (made[1], made[2], made[0], made[3])


@pytest.mark.parametrize("other", [COPY, *OTHERS.values()], ids=["a copy", *OTHERS])
def test_each_table_has_its_own(open_store: OpenStore, other: TableIdentity) -> None:
    requests = open_store().requests
    requests.file(a_request(5))
    assert requests.claim(a_request(5, other)) is False
    requests.file(a_request(6, other))
    assert pending(requests) == (a_request(5), a_request(6, other))
    assert requests.claim(a_request(6, other)) is True
    assert pending(requests) == (a_request(5),)


@pytest.mark.parametrize("called", SPELLINGS.values(), ids=SPELLINGS)
def test_a_table_has_one_request_whatever_it_is_called(open_store: OpenStore, called: TableIdentity) -> None:
    """It tells the names of the last one who asked."""
    requests = open_store().requests
    requests.file(a_request(5, operations="compact"))
    requests.file(a_request(6, called))
    assert pending(requests) == (a_request(6, called),)
    assert requests.claim(a_request(6)) is True
    assert pending(requests) == ()


def test_of_many_claims_at_once_one_succeeds(open_store: OpenStore) -> None:
    open_store().requests.file(a_request(5, operations="compact"))
    start = Barrier(8)

    def claim(_: int) -> bool:
        requests = open_store().requests
        start.wait()
        return requests.claim(a_request(5, operations="compact"))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(claim, range(8))) == [False] * 7 + [True]
