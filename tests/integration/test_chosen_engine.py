"""The command chooses its engine, says which one it was and why, and keeps the name in the journal."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.command import CATALOG, Command

A_CALL = """
import json, sys
from icekeeper.cli import main
code = main(json.loads(sys.argv[1]))
print(json.dumps({"code": code, "spark": "pyspark" in sys.modules}), file=sys.stderr)
"""
HERE = "no Spark session or cluster is at hand"


def called(*call: str) -> tuple[str, dict[str, Any]]:
    """Standard output of a call in a process of its own, where no test has started a Spark session; and what it did."""
    words = [sys.executable, "-c", A_CALL, json.dumps([*call, "--catalog", CATALOG])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def test_a_pass_takes_this_machine_where_no_cluster_is_at_hand(command: Command) -> None:
    command.table(appends=6)
    out, did = called("plan", "ns.t", "--operations", "compact")
    assert f"engine: local; {HERE}" in out.splitlines()
    out, did = called("maintain", "ns.t", "--operations", "compact", "--json")
    assert json.loads(out)["engine"] == {"name": "local", "reason": HERE}
    assert did == {"code": 0, "spark": False}
    assert command("history", "ns.t", "--json").json["passes"][0]["engine"] == "local"


def test_an_engine_that_is_named_has_no_reason(command: Command) -> None:
    command.table(appends=6)
    document = command("maintain", "ns.t", "--engine", "local", "--dry-run", "--json").json
    assert document["engine"] == {"name": "local", "reason": None}
    assert "engine:" not in command("plan", "ns.t", "--engine", "local").out


def test_help_names_the_default(command: Command) -> None:
    for name in ("maintain", "plan", "orphans", "run", "demo"):
        text = " ".join(command(name, "--help", catalog=None).out.split())
        assert "[default: auto]" in text
        assert "[auto|spark|local]" in text or "<auto|spark|local>" in text
