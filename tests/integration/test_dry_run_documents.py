"""The documents of dry runs: on the table as it is, and in turn on what the operations before would leave."""

from __future__ import annotations

from support.command import Command

OPERATIONS = ("--engine", "local", "--operations", "compact,rewrite_manifests")


def test_a_dry_run_answers_on_the_head_and_in_turn(command: Command) -> None:
    command.table(appends=6)
    dry = command("maintain", "ns.t", *OPERATIONS, "--dry-run", "--json").json
    manifests = dry["operations"][1]
    assert (manifests["summary"], len(manifests["files"]["planned"])) == ("would rewrite 6 manifests into 1", 6)
    assert dry["planned_anew"] == {"rewrite_manifests": ["compact"]}
    left = "only 2 data manifests, below threshold of 5"
    assert {key: manifests["in_turn"][key] for key in ("status", "reason", "planned_after")} == {
        "status": "skipped",
        "reason": left,
        "planned_after": ["compact"],
    }
    plan = command("plan", "ns.t", *OPERATIONS, "--json").json
    assert (plan["operations"][1]["reason"], plan["planned_anew"]) == (left, {})


def test_people_read_what_the_pass_will_do(command: Command) -> None:
    command.table(appends=6)
    for asked in ("plan", "maintain"):
        told = command(asked, "ns.t", *OPERATIONS, *(["--dry-run"] if asked == "maintain" else [])).out
        assert "rewrite 6 manifests" not in told
        assert "planned on the table as the operations before would leave it: rewrite_manifests" in told
