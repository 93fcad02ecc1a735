"""``icekeeper history``: what the journal says of a table, for programs and for people."""

from __future__ import annotations

import pytest

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import PassRecord
from support.command import CATALOG, Command, one_sentence

NOON_MS = 1_767_268_800_000


def record(command: Command, run_id: str, started_ms: int, status: str = "succeeded") -> PassRecord:
    uuid = str(command.catalog.load_table("ns.t").metadata.table_uuid)
    identity = TableIdentity(CATALOG, command.warehouse.as_uri(), TableName(("ns",), "t"), uuid)
    made = PassRecord(
        identity=identity,
        run_id=run_id,
        started_ms=started_ms,
        finished_ms=started_ms + 2_340,
        status=status,
        summary=f"compact: [{run_id}]",
        metrics={"compact.files_merged": 15, "compact.ratio": 0.1},
        engine="local",
    )
    SqliteStateStore(command.state).record_pass(made)
    return made


def test_a_pass_is_in_the_history(command: Command) -> None:
    command.table(appends=6)
    ran = command("maintain", "ns.t", "--engine", "local", "--operations", "compact", "--json")
    answer = command("history", "ns.t", "--json")
    (one,) = answer.json["passes"]
    assert (answer.code, answer.json["table"], answer.json["catalog"]) == (0, "ns.t", "C")
    assert one == {
        "run_id": ran.json["run_id"],
        "started_ms": one["started_ms"],
        "finished_ms": one["finished_ms"],
        "duration_ms": one["finished_ms"] - one["started_ms"],
        "status": "succeeded",
        "summary": ran.json["summary"],
        "engine": "local",
        "metrics": ran.json["metrics"],
    }


def test_the_newest_come_first_and_as_many_as_asked(command: Command) -> None:
    command.table(appends=0)
    for number in range(25):
        record(command, f"run-{number:02d}", NOON_MS + number * 60_000)
    runs = [one["run_id"] for one in command("history", "ns.t", "--json").json["passes"]]
    assert runs == [f"run-{number:02d}" for number in range(24, 4, -1)]
    three = command("history", "ns.t", "--limit", "3", "--json").json["passes"]
    assert [one["run_id"] for one in three] == ["run-24", "run-23", "run-22"]
    assert three[0]["duration_ms"] == 2_340


def test_people_read_a_line_for_each_pass(command: Command) -> None:
    command.table(appends=0)
    record(command, "a", NOON_MS, "partial")
    record(command, "b", NOON_MS + 3_600_000)
    answer = command("history", "ns.t")
    assert answer.out.splitlines() == [
        "2026-01-01T13:00:00Z  2.3 s  succeeded  compact: [b]",
        "2026-01-01T12:00:00Z  2.3 s  partial    compact: [a]",
    ]


def test_a_table_without_passes_says_so(command: Command) -> None:
    command.table(appends=0)
    assert command("history", "ns.t", "--json").json == {
        "table": "ns.t",
        "catalog": "C",
        "status": "succeeded",
        "passes": [],
    }
    assert command("history", "ns.t").out == "no pass over this table is known\n"


@pytest.mark.parametrize(
    "arguments", [("history", "ns.unknown"), ("history", "ns.t", "--limit", "0"), ("history", "t")], ids=lambda a: a[-1]
)
def test_wrong_calls(command: Command, arguments: tuple[str, ...]) -> None:
    command.table(appends=0)
    answer = command(*arguments)
    assert answer.code == 2
    assert one_sentence(answer.err)


def test_a_malformed_address_of_the_state_is_a_wrong_call(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table(appends=0)
    monkeypatch.setenv("ICEKEEPER_STATE", "redis://cache")
    answer = command("history", "ns.t")
    assert answer.code == 2
    assert one_sentence(answer.err) == (
        "ICEKEEPER_STATE=redis://cache has an unknown scheme: "
        "write a path, or dynamodb://TABLE[?region=REGION&profile=NAME&endpoint=URL]"
    )
