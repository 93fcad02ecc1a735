"""``icekeeper request`` files, lists and withdraws requests; a pass claims them."""

from __future__ import annotations

import os
from functools import partial

import pytest

from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.pipeline.request_pass import NO_RUN, Waiting
from icekeeper.state.leases import note_detection
from icekeeper.state.open import open_state
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite.store import SqliteStateStore
from support.command import Command, one_sentence

MAINTAIN = ("maintain", "ns.t", "--engine", "local")

# ``icekeeper request`` checks a request before it files it.


def pending(command: Command) -> tuple[MaintenanceRequest, ...]:
    return SqliteStateStore(command.state).requests.pending()


def test_a_request_is_filed_with_the_uuid_of_its_table(command: Command) -> None:
    table = command.table(appends=1)
    before = command.contents()
    answer = command(
        "request", "add", "ns.t", "--operations", "compact,expire_snapshots", "--set", "branch=main", "--json"
    )
    (request,) = pending(command)
    assert answer.code == 0
    assert answer.json == {
        "table": "ns.t",
        "catalog": "C",
        "status": "requested",
        "summary": NO_RUN,
        "requested_ms": request.requested_ms,
        "settings": {"operations": "compact,expire_snapshots", "branch": "main"},
        "execution": None,
        "pass": None,
    }
    assert request.identity.uuid == str(table.metadata.table_uuid)
    assert request.settings == answer.json["settings"]
    assert command.contents() == before


def test_a_repeated_request_replaces_the_pending_request(command: Command) -> None:
    command.table(appends=1)
    assert command("request", "add", "ns.t", "--operations", "compact").code == 0
    answer = command("request", "add", "ns.t", "--no-wait")
    assert answer.out == f"ns.t: requested: {NO_RUN}\n"
    assert [dict(request.settings) for request in pending(command)] == [{}]


WRONG = {
    "there is no table ns.gone": ("ns.gone",),
    "'t' is not a table name": ("t",),
    "policy key operations cannot be": ("ns.t", "--operations", "polish"),
    "policy key min_input_files cannot be": ("ns.t", "--set", "min_input_files=few"),
    "unknown policy key": ("ns.t", "--set", "min_inputs=1"),
    "orphan_older_than_hours": ("ns.t", "--set", "orphan_older_than_hours=1"),
    "gone": ("ns.t", "--set", "branch=gone"),
    "nothing": ("ns.t", "--set", "where=nothing = 1"),
    "policy key max_jobs_per_detection has no effect on one table: icekeeper detect and icekeeper run read it": (
        *("ns.t", "--set", "max_jobs_per_detection=2"),
    ),
    "'maintain-tables' is not the ARN of a state machine": ("ns.t", "--state-machine", "maintain-tables"),
    "--wait takes a time like 90s, 30m, 6h or 7d": ("ns.t", "--wait", "soon"),
    "--wait and --no-wait exclude each other": ("ns.t", "--wait", "1h", "--no-wait"),
}


def test_a_wrong_call_files_nothing(command: Command) -> None:
    command.table(appends=1)
    for message, arguments in WRONG.items():
        answer = command("request", "add", *arguments)
        assert answer.code == 2
        assert message in one_sentence(answer.err)
    for call, key, by in (
        (MAINTAIN, "detection_interval_s=60", "one table: icekeeper run reads it"),
        (MAINTAIN, "table_filter=x", "one table: icekeeper detect and icekeeper run read it"),
        (("plan", "ns.t"), "max_concurrent_jobs=2", "one table: icekeeper run reads it"),
        (("detect",), "max_concurrent_jobs_per_worker=2", "one detection: icekeeper run reads it"),
    ):
        answer = command(*call, "--set", key)
        assert answer.code == 2
        assert one_sentence(answer.err) == f"policy key {key.partition('=')[0]} has no effect on {by}"
    assert pending(command) == ()


def test_a_wait_that_no_run_ends_is_an_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table(appends=1)
    times_ms = iter(range(0, 10_000, 600))
    in_no_time = partial(Waiting, clock=lambda: next(times_ms), sleep=lambda _: None)
    monkeypatch.setattr("icekeeper.pipeline.request_pass.Waiting", in_no_time)
    answer = command("request", "add", "ns.t", "--wait", "1s", "--json")
    assert (answer.code, answer.json["status"]) == (1, "requested")
    assert answer.json["summary"] == "no run has served the request within 1 s; it stays filed"
    assert answer.err.splitlines()[-1] == f"error: ns.t: requested: {answer.json['summary']}"
    assert len(pending(command)) == 1


# Pending requests are listed and withdrawn, and a pass claims them.


def listed() -> tuple[MaintenanceRequest, ...]:
    return open_state(os.environ).requests.pending()


def test_the_answer_states_whether_a_scheduled_run_takes_the_request(command: Command) -> None:
    command.table(appends=1)
    next_run = "ns.t: requested: the next scheduled run takes it first\n"
    for call, hours_ago, expected in (
        (("request", "add", "ns.t"), None, f"ns.t: requested: {NO_RUN}\n"),
        (("request", "add", "ns.t"), 26, f"ns.t: requested: {NO_RUN}\n"),
        (("request", "add", "ns.t"), 24, next_run),
    ):
        if hours_ago is not None:
            note_detection(open_state(os.environ).leases, now_ms=system_clock() - hours_ago * HOUR_MS)
        answer = command(*call)
        assert (answer.code, answer.out, len(listed())) == (0, expected, 1)
    assert command("request", "add", "--json", "ns.t").code == 0  # an option may come first


def test_a_cycle_takes_the_requests_of_this_machines_state(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ICEKEEPER_STATE a request is refused, unless a run of this machine has read the local state."""
    command.table(appends=1)
    monkeypatch.delenv("ICEKEEPER_STATE")
    refused = command("request", "add", "ns.t", "--json")
    assert (refused.code, refused.json["error"]["type"]) == (2, "PolicyError")
    assert "set it to the stack's output State, dynamodb://TABLE" in refused.json["error"]["message"]
    assert command("run", "--once", "--engine", "local").code == 0
    answer = command("request", "add", "ns.t", "--set", "rewrite_all=true")
    assert answer.out == "ns.t: requested: the next scheduled run takes it first\n"
    assert len(listed()) == 1
    assert command("run", "--once", "--engine", "local").code == 0
    assert listed() == ()


def test_requests_are_listed_in_the_order_in_which_they_are_taken(command: Command) -> None:
    command.table("ns.b", appends=1)
    command.table("ns.a", appends=1)
    empty = command("request", "list", catalog=None)
    assert (empty.code, empty.out) == (0, "no request is pending\n")
    command("request", "add", "ns.b", "--operations", "compact")
    command("request", "add", "ns.a")
    first, second, warning = command("request", "list", catalog=None).out.splitlines()
    assert first.split()[1:] == ["C", "ns.b", "operations=compact"]
    assert second.split()[1:] == ["C", "ns.a"]
    assert warning == "no run has looked for requests here in the last 25 hours"
    assert command("request", "list", "--json").json == {
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
            for request, line in zip(listed(), (first, second), strict=True)
        ],
    }
    assert command("request", "list", "--json", catalog="D").json["requests"] == []


def test_a_request_is_withdrawn_once(command: Command) -> None:
    command.table("ns.a", appends=1)
    command.table("ns.b", appends=1)
    command("request", "add", "ns.a")
    command("request", "add", "ns.b")
    answer = command("request", "withdraw", "ns.a", "--json")
    assert (answer.code, answer.json["withdrawn"]["table"]) == (0, "ns.a")
    assert [str(request.identity.table) for request in listed()] == ["ns.b"]
    again = command("request", "withdraw", "ns.a")
    assert again.code == 2
    assert one_sentence(again.err) == ("no request is pending for ns.a of catalog C; icekeeper request list shows them")
    assert len(listed()) == 1


def test_a_request_for_a_dropped_table_is_withdrawn_by_name(command: Command) -> None:
    command.table(appends=1)
    command("request", "add", "ns.t")
    command.catalog.drop_table("ns.t")
    assert command("request", "withdraw", "ns.t").code == 0
    assert listed() == ()


def test_a_pass_claims_a_request_if_it_does_all_that_it_requests(command: Command) -> None:
    command.table(appends=1)
    command.table("ns.other", appends=1)
    compact, rewrite = ("--operations", "compact"), ("--set", "rewrite_all=true")
    command("request", "add", "ns.other")
    for requested, given, is_claimed in (
        ((), ("--dry-run",), False),
        ((), compact, False),
        ((), (), True),
        (compact, ("--operations", "expire_snapshots"), False),
        (compact, compact, True),
        (compact, (), True),
        (rewrite, (), False),
    ):
        command("request", "add", "ns.t", *requested)
        assert command(*MAINTAIN, *given).code == 0
        left = ["ns.other", *([] if is_claimed else ["ns.t"])]
        assert [str(request.identity.table) for request in listed()] == left, (requested, given)


def test_a_pass_that_cannot_begin_leaves_the_request(command: Command) -> None:
    command.table(appends=1)
    command("request", "add", "ns.t")
    (request,) = listed()
    state = open_state(os.environ)
    state.leases.acquire(request.identity.lease_key, "run-1", now_ms=system_clock(), ttl_ms=HOUR_MS)
    assert command(*MAINTAIN).code == 1
    assert listed() == (request,)
