"""User mistakes and outside faults end with one sentence that says what to do, and with the right exit code.

``mistakes.md`` lists each with its output; the tests compare it with the output of the command.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.maintenance.saved_plan import digest_of
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite import store as state_file
from support.command import CATALOG, Answer, Command, local_path
from support.killed_processes import dies_at
from support.maintained_table import NAME
from support.moments import Moment, at
from support.proxies import closed_port

PAGE = Path(__file__).with_name("mistakes.md")
SECOND = ("--catalog", "second")
EXPIRED = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
# Amazon S3's answer to a request that was signed for another region.
ELSEWHERE = (
    "<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the region "
    "'eu-central-1' is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region></Error>"
)
KILLED_AT = 30
Mistake = Callable[[Command, pytest.MonkeyPatch], Answer]


def call(*arguments: str) -> Mistake:
    return lambda command, patch: command(*arguments)


def of_rest(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    patch.setenv("PYICEBERG_CATALOG__SECOND__TYPE", "rest")
    with closed_port() as address:
        patch.setenv("PYICEBERG_CATALOG__SECOND__URI", address)
        return command("health", "ns.t", *SECOND, catalog=None)


def on_s3(endpoint: str, command: Command, patch: pytest.MonkeyPatch) -> Answer:
    """A table whose metadata file is in an object store."""
    patch.setenv("ICEKEEPER_ALLOWED_PREFIXES", f"{CATALOG}.ns={command.warehouse.as_uri()},s3://lake/t")
    command.register("s3://lake/t/metadata/00001-a.metadata.json", "ns.far")
    for name, value in {
        "ENDPOINT": endpoint,
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
        "REGION": "eu-central-1",
    }.items():
        patch.setenv(f"PYICEBERG_CATALOG__{CATALOG}__S3__{name}", value)
    return command("health", "ns.far")


def silent_store(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    with closed_port() as address:
        return on_s3(address, command, patch)


def refusing_store(refusal: str) -> Mistake:
    """A store that answers every request with this error."""

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(400)
            self.send_header("Content-Length", str(len(refusal)))
            self.end_headers()
            self.wfile.write(refusal.encode())

        def log_message(self, *_: object) -> None:
            """Be silent."""

    def mistake(command: Command, patch: pytest.MonkeyPatch) -> Answer:
        with HTTPServer(("127.0.0.1", 0), Refuse) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                return on_s3(f"http://127.0.0.1:{server.server_port}", command, patch)
            finally:
                server.shutdown()

    return mistake


def damaged(change: Callable[[Path], object], *arguments: str) -> Mistake:
    """A table whose current metadata file was changed."""

    def mistake(command: Command, patch: pytest.MonkeyPatch) -> Answer:
        change(local_path(command.catalog.load_table("ns.t").metadata_location))
        return command(*arguments)

    return mistake


def future_format(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 9}))


def data_file(change: Callable[[Path], object]) -> Mistake:
    def mistake(command: Command, patch: pytest.MonkeyPatch) -> Answer:
        change(min(local_path(command.catalog.load_table("ns.t").location()).rglob("data/*.parquet")))
        return command("verify", "ns.t")

    return mistake


def leased(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    runtime = Runtime.open(CATALOG, command.environment())
    key = identity_of(runtime.catalog, runtime.catalog.load(NAME)).lease_key
    runtime.state.leases.acquire(key, "icekeeper run on host", now_ms=system_clock(), ttl_ms=HOUR_MS, name="ns.t")
    return command("maintain", "ns.t")


def saved_plan(change: Callable[[Command, Path], object]) -> Mistake:
    def mistake(command: Command, patch: pytest.MonkeyPatch) -> Answer:
        plan = command.folder / "plan.json"
        assert command("plan", "ns.t", "--save", str(plan)).code == 0
        change(command, plan)
        return command("apply", str(plan), catalog=None)

    return mistake


def age(command: Command, plan: Path) -> None:
    document = json.loads(plan.read_text())
    del document["digest"]
    document["saved_ms"] -= 24 * HOUR_MS
    document["tables"][0]["planned_ms"] -= 24 * HOUR_MS
    plan.write_text(json.dumps({**document, "digest": digest_of(document)}))


def in_setting(environment: Mapping[str, str], *arguments: str, catalog: str | None = CATALOG) -> Mistake:
    """Call the command with other variables; ``{}`` stands for the folder of the test."""

    def mistake(command: Command, patch: pytest.MonkeyPatch) -> Answer:
        for name, value in environment.items():
            patch.setenv(name, value.replace("{}", str(command.folder)))
        return command(*arguments, catalog=catalog)

    return mistake


def page_into_folder(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    assert command("detect").code == 0
    return command("report", "--output", "/")


def without_catalogs(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    for name in command.environment():
        if name.startswith("PYICEBERG_"):
            patch.delenv(name)
    return command("detect", catalog=None)


def damaged_state(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    command.state.write_bytes(b"this is no database, and longer than a header of one hundred bytes" * 4)
    return command("history", "ns.t")


def locked_state(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    assert command("detect").code == 0
    patch.setattr(state_file, "BUSY_TIMEOUT_S", 0.1)
    with closing(sqlite3.connect(command.state, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        return command("maintain", "ns.t")


def before_the_commit(action: Callable[[Command], object]) -> Mistake:
    """Run ``action`` just before a pass commits."""

    def mistake(command: Command, patch: pytest.MonkeyPatch) -> Answer:
        with at(Moment.BEFORE_COMMIT, lambda: action(command)):
            return command("maintain", "ns.t", "--engine", "local", "--set", "min_input_files=2")

    return mistake


def replaced(command: Command, appends: int = 1) -> None:
    command.catalog.drop_table("ns.t")
    command.table(appends=appends)


def interrupted(command: Command) -> None:
    raise KeyboardInterrupt


def killed(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    assert dies_at(KILLED_AT, lambda: command("maintain", "ns.t", "--engine", "local", "--set", "min_input_files=2"))
    return command("maintain", "ns.t", "--engine", "local", "--set", "min_input_files=2")


def process(output: int, *words: str) -> Answer:
    """Run a command in a new process that writes to ``output``."""
    icekeeper = [str(Path(sys.executable).parent / "icekeeper"), *words, "--catalog", CATALOG]
    done = subprocess.run(icekeeper, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(output)
    return Answer(done.returncode, "", done.stderr)


def full_output(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    return process(os.open("/dev/full", os.O_WRONLY), "health", "ns.t")


def cut_output(command: Command, patch: pytest.MonkeyPatch) -> Answer:
    """``| head -0``: the reader exits before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    return process(writing, "policy", "show", "ns.t")


MISTAKES: dict[str, Mistake] = {
    "a table that is not there": call("maintain", "ns.tt"),
    "a name without namespace": call("maintain", "orders"),
    "a pattern that matches nothing": call("maintain", "shop.*"),
    "a pattern without --yes": call("policy", "set", "ns.*", "min_input_files=9"),
    "a catalog that is not configured": lambda command, patch: command("health", "ns.t", "-c", "lake", catalog=None),
    "no catalog is configured": without_catalogs,
    "a misspelt option": call("maintain", "ns.t", "--dryrun"),
    "a misspelt key": call("maintain", "ns.t", "--set", "min_input_file=3"),
    "a value that does not fit": call("maintain", "ns.t", "--set", "min_input_files=few"),
    "a setting without a value": call("maintain", "ns.t", "--set", "min_input_files"),
    "a misspelt operation": call("maintain", "ns.t", "--operations", "compakt"),
    "a column that is not there": call("maintain", "ns.t", "--set", "where=size > 3"),
    "a retention below a day": call("maintain", "ns.t", "--set", "snapshot_retention_hours=1"),
    "an orphan grace below a day": call("maintain", "ns.t", "--set", "orphan_older_than_hours=1"),
    "a time that is none": call("history", "--since", "yesterday"),
    "a pause that is over": call("pause", "ns.t", "--until", "2001-01-01T00:00:00Z"),
    "a snapshot that is not there": call("pin", "add", "ns.t", "--snapshot", "7", "--ttl", "6h"),
    "a page into a folder": page_into_folder,
    "a plan that is no plan": saved_plan(lambda command, plan: plan.write_text("{}")),
    "a plan that was edited": saved_plan(
        lambda command, plan: plan.write_text(plan.read_text().replace("ns.t", "ns.u"))
    ),
    "a plan of yesterday": saved_plan(age),
    "a plan of a table that was replaced": saved_plan(lambda command, plan: replaced(command, appends=2)),
    "a table that is replaced during the pass": before_the_commit(replaced),
    "a pass while another one runs": leased,
    "Ctrl-C": before_the_commit(interrupted),
    "a pass after one that was killed": killed,
    "a state file that is damaged": damaged_state,
    "a state file in a folder that is not there": in_setting({"ICEKEEPER_STATE": "{}/no/state.db"}, "history", "ns.t"),
    "a state file in a read-only folder": in_setting({"ICEKEEPER_STATE": "/sys/state.db"}, "maintain", "ns.t"),
    "a state file that another program locks": locked_state,
    "a full disk for the state": in_setting({"ICEKEEPER_STATE": "/dev/full"}, "maintain", "ns.t"),
    "a full disk for the output": full_output,
    "a reader that has closed the pipe": cut_output,
    "a database that is not there": in_setting(
        {f"PYICEBERG_CATALOG__{CATALOG}__URI": "sqlite:///{}/catalogue.db"}, "detect"
    ),
    "a REST catalog that does not answer": of_rest,
    "a store that does not answer": silent_store,
    "keys that have expired": refusing_store(EXPIRED),
    "a bucket of another region": refusing_store(ELSEWHERE),
    "metadata that is no JSON": damaged(lambda path: path.write_text("{"), "health", "ns.t"),
    "metadata that is gone": damaged(Path.unlink, "health", "ns.t"),
    "a format of the future": damaged(future_format, "maintain", "ns.t"),
    "a data file that is gone": data_file(Path.unlink),
    "a data file of zero bytes": data_file(lambda path: path.write_bytes(b"")),
}


def ending(answer: Answer, command: Command) -> str:
    """The exit code and the sentence, without parts that differ between runs."""
    text = " ".join(answer.err.split())
    for pattern, word in (
        (re.escape(str(command.folder)), "DIR"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
        (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
        (r"127\.0\.0\.1:\d+", "HOST"),
        (r"\[[0-9a-f.]+\]", "[MARK]"),
    ):
        text = re.sub(pattern, word, text)
    return f"{answer.code} | {text.removeprefix('error: ')}"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_the_output_that_the_page_lists(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(tmp_path, monkeypatch, capsys)
    command.table(appends=3)
    line = f"| {mistake} | {ending(MISTAKES[mistake](command, monkeypatch), command)} |"
    assert "Traceback" not in line
    listed = [row for row in PAGE.read_text().splitlines() if row.startswith(f"| {mistake} |")]
    assert listed == [line]


def test_the_page_lists_exactly_these_mistakes() -> None:
    rows = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [*MISTAKES]
