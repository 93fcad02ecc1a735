"""Requests that are pending: who takes them is told, they are listed and withdrawn, and a pass claims its table's."""

from __future__ import annotations

import os

import pytest

from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.state.leases import note_detection
from icekeeper.state.open import open_state
from icekeeper.state.store import MaintenanceRequest
from support.command import Command, one_sentence

MAINTAIN = ("maintain", "ns.t", "--engine", "local")


def pending() -> tuple[MaintenanceRequest, ...]:
    return open_state(os.environ).requests.pending()


def note_a_detection(hours_ago: int = 0) -> None:
    note_detection(open_state(os.environ).leases, now_ms=system_clock() - hours_ago * HOUR_MS)


@pytest.mark.parametrize(
    ("hours_ago", "said"),
    [
        (None, "ns.t: requested: nothing is scheduled: no run has looked for requests here in the last 25 hours; "),
        (24, "ns.t: requested: the next scheduled run takes it first\n"),
        (26, "ns.t: requested: nothing is scheduled: "),
    ],
)
def test_whoever_files_a_request_is_told_whether_anything_is_scheduled(
    command: Command, hours_ago: int | None, said: str
) -> None:
    command.table(appends=1)
    if hours_ago is not None:
        note_a_detection(hours_ago)
    answer = command("request", "ns.t")
    assert answer.code == 0
    assert answer.out.startswith(said)
    assert len(pending()) == 1


def test_a_cycle_of_this_machine_takes_the_requests_of_its_own_state(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ICEKEEPER_STATE a request is refused, unless a run of this machine looks there."""
    command.table(appends=1)
    monkeypatch.delenv("ICEKEEPER_STATE")
    assert command("request", "ns.t").code == 2
    assert command("run", "--once", "--engine", "local").code == 0
    answer = command("request", "ns.t", "--set", "rewrite_all=true")
    assert answer.out == "ns.t: requested: the next scheduled run takes it first\n"
    assert len(pending()) == 1
    assert command("run", "--once", "--engine", "local").code == 0
    assert pending() == ()


def test_requests_are_listed_in_the_order_in_which_they_are_taken(command: Command) -> None:
    command.table("ns.b", appends=1)
    command.table("ns.a", appends=1)
    empty = command("requests", "list", catalog=None)
    assert (empty.code, empty.out) == (0, "no request is pending\n")
    command("request", "ns.b", "--operations", "compact")
    command("request", "ns.a")
    first, second, warning = command("requests", "list", catalog=None).out.splitlines()
    assert first.split()[1:] == ["C", "ns.b", "operations=compact"]
    assert second.split()[1:] == ["C", "ns.a"]
    assert warning == "no run has looked for requests here in the last 25 hours"
    assert command("requests", "list", "--json").json == {
        "catalog": "C",
        "status": "succeeded",
        "scheduled": False,
        "requests": [
            {
                "table": str(request.identity.table),
                "catalog": "C",
                "requested_ms": request.requested_ms,
                "requested": line.split()[0],
                "settings": dict(request.settings),
            }
            for request, line in zip(pending(), (first, second), strict=True)
        ],
    }
    assert command("requests", "list", "--json", catalog="D").json["requests"] == []


def test_a_request_is_withdrawn_once(command: Command) -> None:
    command.table("ns.a", appends=1)
    command.table("ns.b", appends=1)
    command("request", "ns.a")
    command("request", "ns.b")
    answer = command("requests", "withdraw", "ns.a", "--json")
    assert (answer.code, answer.json["withdrawn"]["table"]) == (0, "ns.a")
    assert [str(request.identity.table) for request in pending()] == ["ns.b"]
    again = command("requests", "withdraw", "ns.a")
    assert again.code == 2
    assert one_sentence(again.err) == (
        "no request is pending for ns.a of catalog C; icekeeper requests list shows them"
    )
    assert len(pending()) == 1


def test_a_request_for_a_table_that_is_gone_is_withdrawn_by_its_name(command: Command) -> None:
    command.table(appends=1)
    command("request", "ns.t")
    command.catalog.drop_table("ns.t")
    assert command("requests", "withdraw", "ns.t").code == 0
    assert pending() == ()


@pytest.mark.parametrize(
    ("asked", "given", "is_claimed"),
    [
        ([], [], True),
        (["--operations", "compact"], [], True),
        (["--operations", "compact"], ["--operations", "compact"], True),
        (["--operations", "compact"], ["--operations", "expire_snapshots"], False),
        ([], ["--operations", "compact"], False),
        (["--set", "rewrite_all=true"], [], False),
        ([], ["--dry-run"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_pass_claims_the_request_if_it_does_what_was_asked_for(
    command: Command, asked: list[str], given: list[str], is_claimed: bool
) -> None:
    command.table(appends=1)
    command.table("ns.other", appends=1)
    command("request", "ns.other")
    command("request", "ns.t", *asked)
    assert command(*MAINTAIN, *given).code == 0
    left = ["ns.other", *([] if is_claimed else ["ns.t"])]
    assert [str(request.identity.table) for request in pending()] == left


def test_a_pass_that_cannot_begin_leaves_the_request(command: Command) -> None:
    command.table(appends=1)
    command("request", "ns.t")
    (request,) = pending()
    state = open_state(os.environ)
    state.leases.acquire(request.identity.lease_key, "run-1", now_ms=system_clock(), ttl_ms=HOUR_MS)
    assert command(*MAINTAIN).code == 1
    assert pending() == (request,)


@pytest.mark.parametrize(
    ("call", "key", "said"),
    [
        (MAINTAIN, "detection_interval_s=60", "for one table: icekeeper run reads it"),
        (MAINTAIN, "table_filter=x", "for one table: icekeeper detect and icekeeper run read it"),
        (("plan", "ns.t"), "max_concurrent_jobs=2", "for one table: icekeeper run reads it"),
        (("request", "ns.t"), "max_jobs_per_detection=2", "for one table: icekeeper detect and icekeeper run read it"),
        (("detect",), "max_concurrent_jobs_per_worker=2", "for one detection: icekeeper run reads it"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_key_that_would_do_nothing_is_refused(command: Command, call: tuple[str, ...], key: str, said: str) -> None:
    command.table(appends=1)
    answer = command(*call, "--set", key)
    assert answer.code == 2
    assert one_sentence(answer.err) == f"policy key {key.partition('=')[0]} has no meaning {said}"
    assert pending() == ()
