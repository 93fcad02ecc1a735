"""``icekeeper request`` on a laptop: what is checked before anything is filed, and what is filed."""

from __future__ import annotations

from functools import partial

import pytest

from icekeeper.cli.passes import NO_RUN
from icekeeper.pipeline.request_pass import Waiting
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import MaintenanceRequest
from support.command import Command, one_sentence


def pending(command: Command) -> tuple[MaintenanceRequest, ...]:
    return SqliteStateStore(command.state).requests.pending()


def test_a_request_is_filed_for_the_very_table(command: Command) -> None:
    table = command.table(appends=1)
    before = command.contents()
    answer = command("request", "ns.t", "--operations", "compact,expire_snapshots", "--set", "branch=main", "--json")
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


def test_a_repeat_refreshes_what_is_pending(command: Command) -> None:
    command.table(appends=1)
    assert command("request", "ns.t", "--operations", "compact").code == 0
    answer = command("request", "ns.t", "--no-wait")
    assert answer.out == f"ns.t: requested: {NO_RUN}\n"
    assert [dict(request.settings) for request in pending(command)] == [{}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ns.gone",), "there is no table ns.gone"),
        (("t",), "'t' is not a table name"),
        (("ns.t", "--operations", "polish"), "policy key operations cannot be"),
        (("ns.t", "--set", "min_input_files=few"), "policy key min_input_files cannot be"),
        (("ns.t", "--set", "min_inputs=1"), "unknown policy key"),
        (("ns.t", "--set", "orphan_older_than_hours=1"), "orphan_older_than_hours"),
        (("ns.t", "--set", "branch=gone"), "gone"),
        (("ns.t", "--set", "where=nothing = 1"), "nothing"),
        (("ns.t", "--state-machine", "maintain-tables"), "'maintain-tables' is not the ARN of a state machine"),
        (("ns.t", "--wait", "soon"), "--wait takes a time like 90s, 30m, 6h or 7d"),
        (("ns.t", "--wait", "1h", "--no-wait"), "--wait and --no-wait exclude each other"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_of_a_wrong_call_nothing_is_filed(command: Command, arguments: tuple[str, ...], message: str) -> None:
    command.table(appends=1)
    answer = command("request", *arguments)
    assert answer.code == 2
    assert message in one_sentence(answer.err)
    assert pending(command) == ()


def test_a_state_of_this_machine_alone_takes_no_request(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table(appends=1)
    monkeypatch.delenv("ICEKEEPER_STATE")
    answer = command("request", "ns.t", "--json")
    assert (answer.code, answer.json["error"]["type"]) == (2, "PolicyError")
    assert "set it to the stack's output State, dynamodb://TABLE" in answer.json["error"]["message"]


def test_whoever_waits_in_vain_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table(appends=1)
    times_ms = iter(range(0, 10_000, 600))
    in_no_time = partial(Waiting, clock=lambda: next(times_ms), sleep=lambda _: None)
    monkeypatch.setattr("icekeeper.pipeline.request_pass.Waiting", in_no_time)
    answer = command("request", "ns.t", "--wait", "1s", "--json")
    assert (answer.code, answer.json["status"]) == (1, "requested")
    assert answer.json["summary"] == "after 1 s no run has taken the request, which stays filed"
    assert answer.err.splitlines()[-1] == f"error: ns.t: requested: {answer.json['summary']}"
    assert len(pending(command)) == 1
