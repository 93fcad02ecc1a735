"""The command with closed pipes and on narrow terminals, and its messages about mistakes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ProfileNotFound

from icekeeper.catalogs.load import open_catalog
from icekeeper.cli import main
from icekeeper.cli.arguments import EXAMPLES, EXIT_CODES, FOR_OPERATORS
from icekeeper.cli.console import heartbeat, people, print_failed, progress_bar, write_output
from icekeeper.errors import PolicyError, StorageError
from icekeeper.state.open import open_state
from icekeeper.storage.failures import describe_failure

_PRINT = """
import sys
from icekeeper.cli.console import people, print_json
if sys.argv[1] == "text":
    for _ in range(3):
        people(as_json=False).print("told")
else:
    print_json({"status": "succeeded"})
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("form", "code"), [("text", 0), ("text", 1), ("json", 0)])
def test_a_closed_pipe_changes_no_exit_code(form: str, code: int) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        found = subprocess.run(
            [sys.executable, "-c", _PRINT, form, str(code)], stdout=write_end, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write_end)
    assert (found.returncode, found.stderr) == (code, b"")


# Help, also on terminals of 60 columns.

GROUPS = ("policy", "pin", "stage", "claims", "request")


def test_help_lists_commands_in_the_order_of_use_without_cut_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    top = [name for name in EXAMPLES if " " not in name]
    assert (top[:5], top[-3:]) == (["list", "detect", "health", "plan", "maintain"], [*FOR_OPERATORS])
    assert len([name for name in EXAMPLES if name not in GROUPS]) <= 41
    for group in ("", *GROUPS):
        assert main([*group.split(), "-h"]) == 0
        page = capsys.readouterr().out
        sections = (page.partition(f"{of}:\n")[2].partition("\n\n")[0] for of in ("Commands", "Commands for operators"))
        listed = [line.split()[0] for section in sections for line in section.splitlines()]
        of_group = [name.removeprefix(f"{group} ") for name in EXAMPLES if name.startswith(f"{group} ")]
        assert listed == (of_group if group else top)
        assert "..." not in page.partition("Commands:")[2]


def test_every_help_has_an_example_and_breaks_no_word_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer cuts a word that is longer than its column; exit codes, on the first page only, are not wrapped."""
    for name in ("", *EXAMPLES):
        pages = {}
        for width in (60, 300):
            monkeypatch.setenv("COLUMNS", str(width))
            monkeypatch.setenv("TERMINAL_WIDTH", str(width))
            assert main([*name.split(), "--help"]) == 0
            captured = capsys.readouterr()
            assert captured.err == ""
            pages[width] = captured.out
        assert set(pages[60].split()) - set(pages[300].split()) == set(), name
        too_long = [line for line in pages[60].splitlines() if len(line) > 60]
        assert [line for line in too_long if not line.startswith("    icekeeper ")] == [], name
        assert [code for code in EXIT_CODES if (f"  {code}\n" in pages[300]) is bool(name)] == [], name
        if name and name not in GROUPS:
            arguments = EXAMPLES[name][1]
            assert f"Example:\n    icekeeper {name} {arguments}\n" in pages[300]
            options = pages[300].partition("Options:")[2].partition("Example:")[0]
            options_used = [word for word in arguments.split() if word.startswith("--")]
            assert [option for option in options_used if f" {option}" not in options] == [], name


# Messages about mistakes in a set-up name the remedy.


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (".", "; it is a folder, so name a file in it with ICEKEEPER_STATE"),
        ("text", "file is not a database; it belongs to another program, or is damaged: put a copy of it"),
        ("/dev/full", "database or disk is full; free space there, or name another file with"),
    ],
    ids=["folder", "another file", "full disk"],
)
def test_an_unusable_state_file_is_reported_with_a_remedy(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(StorageError) as caught:
        open_state({"ICEKEEPER_STATE": str(tmp_path / name)}).require_writable()
    assert sentence in str(caught.value)


def test_missing_credentials_and_profiles_are_reported_with_a_remedy() -> None:
    assert "; set them as for the AWS CLI" in describe_failure(NoCredentialsError(), None)
    found = describe_failure(ProfileNotFound(profile="nix"), None)
    assert "(nix)" in found
    assert "correct AWS_PROFILE or client.profile-name" in found


def test_a_region_that_does_not_exist_is_named() -> None:
    error = EndpointConnectionError(endpoint_url="https://lake.s3.eu-nowhere-9.amazonaws.com/k?list-type=2")
    found = describe_failure(error, None)
    assert "at lake.s3.eu-nowhere-9.amazonaws.com; correct the region if AWS has no region of that name" in found
    assert describe_failure(error, "http://127.0.0.1:9").endswith("nothing answers at http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (errno.EROFS, "cannot be written: its file system is read-only; mount it for writing"),
        (errno.ENOSPC, "cannot be written: no space is left on its disk; free space there"),
        (errno.EACCES, "cannot be accessed: access is denied to these credentials"),
        (errno.EIO, "failed: Input/output error"),
    ],
)
def test_a_failure_of_the_disk_has_neither_a_number_nor_an_internal_path(number: int, found: str) -> None:
    assert describe_failure(OSError(number, os.strerror(number), "/proc/self/fd/7/f.parquet"), None) == found


def test_braces_in_pyicebergs_configuration_are_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  lake: {type: sql, uri: x}\n")
    with pytest.raises(PolicyError, match="write each property on its own line, without braces"):
        open_catalog("lake")


def test_a_catalog_without_a_uri_is_reported_with_a_remedy() -> None:
    with pytest.raises(PolicyError, match="set it next to the catalog's type"):
        open_catalog("lake", {"type": "sql"})


def test_output_does_not_replace_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(PolicyError, match="it is not a regular file; choose another file"):
        write_output("--output", pipe, "page")
    assert pipe.is_fifo()


def test_progress_keeps_its_clocks_in_a_line_of_80_characters(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich treats the pipe as a terminal
    monkeypatch.setenv("COLUMNS", "80")
    with progress_bar() as show:
        show("pass: compact,rewrite_position_deletes", 0, 0)
        show("compact: rewriting", 500 * 2**20, 923 * 2**20)
        show("rewrite_position_deletes: rewriting", 1234, 56789)
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)
    lines = [line for line in re.split(r"[\r\n]+", frames) if ": rewriting" in line or "rewrite_pos" in line]
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if not re.search(r" \d:\d\d:\d\d +[-\d]:[-\d]{2}:[-\d]{2} *$", line)] == []
    assert any("500 MB of 923 MB" in line for line in lines)


def test_a_line_that_is_printed_meanwhile_replaces_the_progress(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one screen, the progress would draw over the result of a table."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as show:
        show("compact: rewriting", 1, 2)
        people(as_json=True).print("ns.a succeeded")
        show("pass: compact", 0, 0)
        show("compact: planning", 0, 0)
    before, _, after = capfd.readouterr().err.partition("ns.a succeeded\n")
    assert before.endswith("\x1b[2K"), "the line of the progress is erased"
    assert "compact: rewriting" in after, "and drawn below"
    assert "compact: planning" in after


def test_the_word_error_is_red_on_a_terminal_only(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for colour, expected in (("1", "\x1b[1;31merror: \x1b[0mgone"), ("", "error: gone")):
        monkeypatch.setenv("FORCE_COLOR", colour)
        print_failed("gone")
        assert capfd.readouterr().err == f"{expected}\n"


def test_without_a_terminal_progress_is_printed_as_lines() -> None:
    lines: list[str] = []
    now_s = [0.0]

    def wait_for(line: str) -> None:
        deadline_s = monotonic() + 20
        while line not in lines:
            assert monotonic() < deadline_s, lines[-1:]
            sleep(0.001)

    with heartbeat(lines.append, every_s=0.001, monotonic_s=lambda: now_s[0]) as progress:
        sleep(0.01)
        assert lines == []
        progress("pass: compact,expire_snapshots", 0, 0)
        progress("compact: planning", 0, 0)
        wait_for("compact: planning")
        progress("compact: rewriting", 0, 8 * 2**20)
        now_s[0] = 1.5
        progress("compact: rewriting", 3 * 2**20, 8 * 2**20)
        wait_for("compact: rewriting 3 MB of 8 MB, 2 MB/s, 2 s left (36 % of the pass)")
        progress("compact: committing", 0, 0)
        wait_for("compact: committing (36 % of the pass)")
        progress("expire_snapshots: planning", 0, 0)
        wait_for("expire_snapshots: planning (96 % of the pass)")
    found = len(lines)
    sleep(0.02)
    assert len(lines) <= found + 1
