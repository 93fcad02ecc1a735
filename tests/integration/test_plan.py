"""``icekeeper plan``: what a pass would do and free, and what each ref holds alone; it changes nothing."""

from __future__ import annotations

from pathlib import Path

from support.command import EVERYTHING_IS_OLD, Command, local_path, one_sentence

LOCAL = ("--engine", "local")
BOTH = (*EVERYTHING_IS_OLD, "--operations", "expire_snapshots,remove_orphans")


def test_it_says_what_a_pass_then_does(command: Command) -> None:
    """The same files, and the bytes that they really have on the disk."""
    table = command.table()
    orphan = local_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"12345")
    before = command.contents()
    planned = command("plan", "ns.t", *LOCAL, *BOTH, "--json")
    assert (planned.code, command.contents()) == (0, before)
    expiry, sweep = planned.json["operations"]
    assert sweep["files"]["planned"] == [orphan.as_uri()]
    sizes = [Path(local_path(path)).stat().st_size for path in expiry["files"]["planned"]]
    assert planned.json["reclaimable_bytes"] == sum(sizes) + 5
    done = command("maintain", "ns.t", *LOCAL, *BOTH, "--json")
    for would, did in zip(planned.json["operations"], done.json["operations"], strict=True):
        assert did["files"]["deleted"] == would["files"]["planned"]


def test_a_tag_costs_what_only_it_holds(command: Command) -> None:
    """Bytes of the files that dropping the tag would free, metadata included; the branch shares none of them."""
    table = command.table(appends=1)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()  # type: ignore[union-attr]
    first = table.inspect.files()["file_path"].to_pylist()
    table = command.catalog.load_table("ns.t")
    table.delete()
    answer = command("plan", "ns.t", *LOCAL, "--json")
    assert answer.code == 0
    costs = answer.json["costs"]
    by_name = {ref["name"]: ref for ref in costs["refs"]}
    assert {name: (ref["type"], ref["snapshots"]) for name, ref in by_name.items()} == {
        "main": ("branch", 2),
        "kept": ("tag", 1),
    }
    assert by_name["kept"]["bytes_only_here"] == 0  # its snapshot is in the history of main
    assert [s["refs"] for s in costs["snapshots"]] == [["kept", "main"], ["main"]]
    assert costs["bytes"] >= local_path(first[0]).stat().st_size


def test_people_read_what_is_reclaimable(command: Command) -> None:
    command.table(appends=2)
    answer = command("plan", "ns.t", *LOCAL)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "ns.t: succeeded (dry run: nothing was changed)"
    assert any(line.startswith("reclaimable: 0 bytes of the ") for line in lines)
    assert any(line.startswith("main  branch  2 snapshot(s), ") for line in lines)


def test_an_unknown_table_is_a_wrong_call(command: Command) -> None:
    answer = command("plan", "ns.nothing", *LOCAL)
    assert answer.code == 2
    assert "ns.nothing" in one_sentence(answer.err)
