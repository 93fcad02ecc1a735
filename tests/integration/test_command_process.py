"""The command as a process: the installed script, terminals, workers that end with it, and shell completion."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest

from icekeeper.cli import main
from support.command import OPERATION_NAMES, PASS, Command, one_sentence
from support.interrupted_process import wait_until

# -- the console script, terminals


def test_the_console_script_prints_results_and_errors_apart(command: Command) -> None:
    command.table()
    answer = command.script(*PASS, "--catalog", "C", "--json")
    assert (answer.code, answer.json["status"]) == (0, "succeeded")
    assert "\x1b" not in answer.out + answer.err
    assert [line.split()[0] for line in answer.err.splitlines()] == ["ns.t:", *OPERATION_NAMES, "freed"]

    for arguments in ([], ["policy"]):
        usage = command(*arguments, catalog=None)
        assert (usage.code, usage.out, usage.err[:16]) == (2, "", "Usage: icekeeper")
    done = subprocess.run([sys.executable, "-m", "icekeeper", "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"icekeeper {version('icekeeper')}\n", "")
    wrong = command.script("maintain", "ns.none", "--catalog", "C", "--json")
    assert wrong.code == 2
    message = "there is no table ns.none in catalog C"
    assert wrong.json == {"error": {"type": "TableNotFound", "message": message}}
    assert one_sentence(wrong.err) == message


def on_terminal(*arguments: str) -> tuple[int, str, str]:
    """Run the command; return exit code, standard output (a pipe) and standard error (a terminal)."""
    controller, terminal = pty.openpty()
    script = str(Path(sys.executable).parent / "icekeeper")
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([script, *arguments], stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        assert process.stdout is not None
        seen = b""
        with open(controller, "rb", buffering=0) as screen:
            while True:
                try:
                    part = screen.read(65536)
                except OSError:  # Linux raises EIO when the last writer has closed
                    break
                if not part:
                    break
                seen += part
        out = process.stdout.read()
    return process.returncode, out.decode(), seen.decode()


SLEEPING_WORK = """
import os, time

def work(path):
    open(os.path.join(path, str(os.getpid())), "w").close()
    time.sleep(600)
"""
SLEEPING_POOL = """
import sys
from icekeeper.engines.local_engine import LocalEngine
from sleeping_work import work

if __name__ == "__main__":
    LocalEngine(2).map(work, [sys.argv[1]] * 2, lambda done: None)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_when_the_command_is_killed(how: signal.Signals, tmp_path: Path) -> None:
    script, started = tmp_path / "pool.py", tmp_path / "started"
    script.write_text(SLEEPING_POOL)
    (tmp_path / "sleeping_work.py").write_text(SLEEPING_WORK)
    started.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(started)]) as parent:
        assert wait_until(lambda: len(list(started.iterdir())) == 2)
        parent.send_signal(how)
    assert wait_until(lambda: not any(alive(int(path.name)) for path in started.iterdir()))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_only_terminals_get_progress_and_colours(command: Command) -> None:
    command.table()
    code, out, screen = on_terminal(*PASS, "--catalog", "C", "--json")
    assert code == 0
    assert json.loads(out)["status"] == "succeeded"
    assert "compact: rewriting" in screen
    assert re.search(r"\d+ % of the pass", screen)
    assert "\x1b[32msucceeded" in screen
    # A pipe gets neither (see ``test_the_console_script_prints_results_and_errors_apart``).


# -v, -q, and shell completion.


def test_verbose_logs_each_step_and_quiet_shows_no_progress(command: Command) -> None:
    command.table()
    plain = command(*PASS, "--dry-run")
    assert (plain.code, plain.err) == (0, "")
    verbose = command.script(*PASS, "-v", "--catalog", "C")
    assert "ns.t: compact started" in verbose.err
    assert "ns.t: compact succeeded: compacted" in verbose.err
    code, out, screen = on_terminal("-q", *PASS, "--set", "rewrite_all=true", "--catalog", "C", "--json")
    assert (code, json.loads(out)["status"]) == (0, "succeeded")
    assert "compact: rewriting" not in screen
    both = command("health", "ns.t", "-q", "-v")
    assert (both.code, both.err) == (2, "error: --verbose and --quiet contradict each other; give one of them\n")


def completed(command: Command, shell: str, *words: str) -> str:
    """The command's answer to a shell that completes the last word."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "_ICEKEEPER_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": " ".join(["icekeeper", *words]),
            "COMP_CWORD": str(len(words)),
            "_TYPER_COMPLETE_ARGS": " ".join(["icekeeper", *words]),
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }.items():
            patch.setenv(name, value)
        if shell == "zsh":
            answer = command.script()  # in a real process
            assert answer.err == ""
            return answer.out
        with redirect_stdout(StringIO()) as found, pytest.raises(SystemExit, match=r"^0$"):
            main([])
    return found.getvalue()


def offered(command: Command, *words: str) -> list[str]:
    """Bash's completions of the last word."""
    return completed(command, "bash", *words).split()


def test_a_shell_completes_catalogs_tables_keys_and_operations(command: Command) -> None:
    command.table(appends=1)
    command.table("ns.u", appends=1)
    assert offered(command, "maintain", "ns.") == []
    assert not command.state.exists()
    command("detect")
    assert offered(command, "maintain", "--catalog", "C", "ns.") == ["ns.t", "ns.u"]
    assert offered(command, "show", "ns.u") == ["ns.u"]
    assert (offered(command, "po"), offered(command, "request", "wi")) == (["policy"], ["withdraw"])
    assert offered(command, "maintain", "--catalog", "other", "ns.") == []
    assert offered(command, "health", "--catalog", "") == ["c"]
    assert offered(command, "health", "--catalog", "c", "ns.") == ["ns.t", "ns.u"]
    assert offered(command, "maintain", "ns.t", "--set", "min_i") == ["min_input_files="]
    assert offered(command, "maintain", "ns.t", "--operations", "compact,ex") == [
        "compact,expire_partitions",
        "compact,expire_snapshots",
    ]
    command.state.write_bytes(b"no database")
    assert offered(command, "show", "ns.") == []


def test_a_name_that_a_shell_would_run_is_not_offered(command: Command) -> None:
    """Such names are left out of completions (rule: escape-at-the-edge)."""
    location = command.table("ns.t-1", appends=1).metadata_location
    for name in ("t_2", r"x\$(touch PWNED)", "t;touch PWNED", "t`id`", "t'", 't"', "t=1", "t~", "t é", "té", "t\n"):
        command.register(location, f"ns.{name}")
    command("detect")
    for shell, answer in (
        ("bash", "ns.t-1\nns.t_2\n"),
        ("zsh", """_arguments '*: :(("ns.t-1"\n"ns.t_2"))'\n"""),
        ("fish", "ns.t-1\nns.t_2\n"),
    ):
        assert completed(command, shell, "maintain", "ns.") == answer
    assert offered(command, "maintain", "ns.t", "--operations", "'$(touch PWNED),ex'") == []
