"""The command escapes names, settings and messages that forge lines or control a terminal
(rule: escape-at-the-edge)."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icekeeper.cli.console import notify, people, print_error, progress_bar, waiting
from icekeeper.engines import spark
from icekeeper.engines.worker_processes import end_worker_server, worker_pool
from icekeeper.text import escaped
from support.command import Command

FORGED = "error: all tables lost"
# ESC and C1 control terminals, bidi marks and zero-width characters change the shown text, the rest begins lines.
HOSTILE = f"t\x1b[2J\x9b31m\u202e\u2066\u200e\u200b\u061c\x85{FORGED}\n{FORGED}\u2028{FORGED}\r{FORGED}"
SPELLED = r"t\x1b[2J\x9b31m\u202e\u2066\u200e\u200b\u061c\x85" + FORGED + r"\n" + FORGED + r"\u2028" + FORGED


def assert_harmless(*streams: str) -> None:
    """All lines have only printable characters, and no line is forged."""
    for text in streams:
        lines = text.split("\n")
        assert [line for line in lines if not line.isprintable()] == []
        assert [line for line in lines if line.strip().startswith(FORGED)] == []


@pytest.fixture
def hostile(command: Command) -> Command:
    """A catalog with a table whose name, branch and property are hostile."""
    table = command.table("ns.t", appends=2, properties={"icekeeper.target_file_size_mb": HOSTILE})
    table.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, HOSTILE).commit()
    with closing(sqlite3.connect(command.database)) as connection, connection:
        connection.execute("UPDATE iceberg_tables SET table_name = ?", (HOSTILE,))
    return command


NAME = f"ns.{HOSTILE}"
CALLS: Sequence[Sequence[str]] = (
    ("detect",),
    ("verify", NAME),
    ("verify", "ns.near"),
    ("verify", HOSTILE),
    ("health", NAME),
    ("plan", NAME),
    ("plan", NAME, "--set", "target_file_size_mb=512"),
    ("plan", NAME, "--set", HOSTILE),
    ("plan", NAME, "--set", f"{HOSTILE}=1"),
    ("maintain", NAME, "--set", f"target_file_size_mb={HOSTILE}"),
    ("maintain", NAME, "--dry-run", "--engine", "local", "--set", "target_file_size_mb=512"),
    ("maintain", NAME, "--engine", "local", "--set", "target_file_size_mb=512", "--set", "rewrite_all=true"),
    ("maintain", NAME, "--operations", HOSTILE),
    ("maintain", NAME, "--wait", HOSTILE),
    ("advise", NAME, "--set", "target_file_size_mb=512"),
    ("advise", "--all"),
    ("history", NAME),
    ("orphans", "--older-than-hours", HOSTILE),
    ("policy", "show", NAME),
    ("policy", "show", NAME, "--set", "target_file_size_mb=512"),
    ("policy", "set", NAME, f"{HOSTILE}=1"),
    ("pin", "list", NAME),
    ("pin", "add", NAME, "--name", HOSTILE, "--ttl", "1h", "--ref", HOSTILE),
    ("pin", "remove", NAME, HOSTILE),
    ("stage", "list", NAME),
    ("claims", "list", NAME),
    ("request", "list"),
    ("request", "withdraw", NAME),
    ("request", "add", NAME, "--set", "target_file_size_mb=512"),
    ("report", "--output", f"/nowhere/{HOSTILE}"),
    ("run", "--once", "--engine", "local"),
    ("maintain", NAME, f"--{HOSTILE}"),
    (HOSTILE,),
)


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_command_lets_a_name_control_the_terminal(hostile: Command, as_json: bool) -> None:
    """Text shows the escaped name, JSON contains the exact name."""
    if as_json:
        (found,) = hostile("detect", "--json").json["skipped"]
        assert found["table"] == NAME
    else:
        assert f"ns.{SPELLED}" in hostile("detect").out
    for call in CALLS:
        answer = hostile(*call, *(["--json"] if as_json else []))
        assert_harmless(answer.out, answer.err)
        if as_json and answer.out:
            assert isinstance(json.loads(answer.out), dict)


def test_a_name_of_invalid_unicode_is_printed_and_brackets_are_not_markup(capfd: pytest.CaptureFixture[str]) -> None:
    """The terminal would show ``[link=…]`` as a link."""
    people(as_json=False).print("ns.\ud800", soft_wrap=True)
    people(as_json=False).print("ns.[link=http://evil]t[/link]: withdrawn", soft_wrap=True)
    assert capfd.readouterr().out == "ns.\\ud800\nns.[link=http://evil]t[/link]: withdrawn\n"


def test_errors_progress_and_waiting_are_escaped(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich treats the pipe as a terminal
    print_error("StorageError", f"{HOSTILE} is gone", as_json=False)
    notify(f"{HOSTILE} is at work")
    with progress_bar() as show:
        show(f"[link=x]{HOSTILE}", 1, 2)
    with waiting(HOSTILE) as show_news:
        show_news(f"{HOSTILE} again")
    printed = capfd.readouterr().err
    for raw in ("\x1b[2J", "\x9b", "\u202e", "\u2066", "\u200e", "\u200b", "\u061c", "\x85", "\u2028", "\r" + FORGED):
        assert raw not in printed
    assert f"\n{FORGED}" not in printed
    assert r"\u202e" in printed


def test_log_lines_are_escaped_with_their_tracebacks(hostile: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ICEKEEPER_LOG`` also shows lines of libraries, which quote any text that they read."""
    monkeypatch.setenv("ICEKEEPER_LOG", "INFO")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    try:
        answer = hostile("detect")
        logging.getLogger("library").warning("read %s", HOSTILE)
    finally:
        root.setLevel(before)
    assert "INFO:icekeeper" in answer.err
    assert_harmless(answer.err)


@pytest.mark.skipif(os.name != "posix", reason="a terminal of Unix")
def test_warnings_of_libraries_are_written_to_the_log(command: Command) -> None:
    """By default Python prints them unescaped on standard error."""
    code = f"""
import warnings
from icekeeper.cli import app
app.app = lambda **given: warnings.warn({HOSTILE!r})
app.main(["detect"])
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_messages_that_spark_logs_begin_no_forged_line(spark_session: SparkSession) -> None:
    """Spark's messages quote exceptions of Python workers, which quote names and paths."""
    java = spark_session._jvm
    assert java is not None
    settings = java.java.util.Properties()
    settings.load(java.java.io.StringReader((Path(spark.__file__).parent / "log4j2.properties").read_text()))
    log4j = java.org.apache.logging.log4j
    builder = log4j.core.layout.PatternLayout.newBuilder().withPattern(settings["appender.stderr.layout.pattern"])
    layout = builder.withAlwaysWriteExceptions(
        settings["appender.stderr.layout.alwaysWriteExceptions"] == "true"
    ).build()
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName("Executor").setLevel(log4j.Level.ERROR)
    event = event.setMessage(log4j.message.SimpleMessage(f"failed: {HOSTILE}"))
    first, *rest = layout.toSerializable(event.setThrown(java.java.lang.RuntimeException(HOSTILE)).build()).split("\n")
    assert re.fullmatch(r"[0-9:]{8} ERROR Executor: failed: t\?\[2J.*", first)
    assert (rest[0], rest[-1]) == (f"    {FORGED}?{FORGED}?{FORGED}", "")
    assert [line for line in rest[:-1] if not line.startswith("    ")] == []
    assert [line for line in (first, *rest) if not line.replace("\t", "").isprintable()] == []


def test_log_lines_of_libraries_in_workers_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    """Logging is not configured in workers, so Python prints warnings unescaped on the command's standard error."""
    library = logging.getLogger("library")
    end_worker_server()  # the server of another test writes to another file
    with worker_pool(1, logging.getLogger) as pool:
        pool.submit(library.warning, "read %s", HOSTILE).result()
        pool.submit(warnings.warn, HOSTILE).result()
    assert capfd.readouterr().err == f"read {escaped(HOSTILE)}\n"
