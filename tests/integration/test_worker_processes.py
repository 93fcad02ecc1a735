"""The local engine's processes: when they start, what they are forked from, and what they import."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import types
from pathlib import Path

import pytest

from icekeeper.engines.local_engine import SMALL_WORK_BYTES, LocalEngine
from icekeeper.engines.worker_processes import end_worker_server, worker_pool
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from support.engine_work import Reads, burn, has_module, process_of, threads_of_server, variable


def processes(*sizes: int) -> set[int]:
    return set(LocalEngine(2).map(process_of, [Reads(size) for size in sizes], lambda done: None))


def test_tasks_that_read_little_start_no_process() -> None:
    """Imports would cost a new process more time than the tasks."""
    half = SMALL_WORK_BYTES // 2
    assert processes(half, half - 1) == {os.getpid()}
    assert os.getpid() not in processes(half, half)


def test_workers_have_the_environment_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their server has the environment of its own start."""
    seen = []
    for value in ("one", "two"):
        monkeypatch.setenv("ICEKEEPER_TEST_WORKERS", value)
        seen.append(LocalEngine(2).map(variable, ["ICEKEEPER_TEST_WORKERS"] * 2, lambda done: None))
    monkeypatch.delenv("ICEKEEPER_TEST_WORKERS")
    seen.append(LocalEngine(2).map(variable, ["ICEKEEPER_TEST_WORKERS"] * 2, lambda done: None))
    assert seen == [["one", "one"], ["two", "two"], [None, None]]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are no forks")
def test_workers_are_forked_from_a_single_threaded_process_with_imported_modules() -> None:
    """A second thread could hold a lock for ever; imports in each worker would take half a second."""
    end_worker_server()
    with worker_pool(2, rewrite_group) as pool:
        assert pool.submit(threads_of_server, 1).result() == 1
        assert pool.submit(has_module, rewrite_group.__module__).result()
    end_worker_server()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are no forks")
def test_workers_do_not_run_the_program_that_starts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without a main guard would run again in each worker."""
    program, mark = tmp_path / "program.py", tmp_path / "mark"
    program.write_text(f"open({str(mark)!r}, 'a').write('it ran')")
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    end_worker_server()
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert len(LocalEngine(2).map(process_of, [1, 2], lambda done: None)) == 2
    end_worker_server()
    assert not mark.exists()


def test_resource_usage_of_workers_is_counted_once_their_server_has_ended() -> None:
    end_worker_server()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    LocalEngine(2).map(burn, [1_000_000, 1_000_000], lambda done: None)
    end_worker_server()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before > 0.02
    end_worker_server()  # a second call has no effect


PROGRAM = """
from operator import neg
from icekeeper.engines.worker_processes import worker_pool
if __name__ == "__main__":
    with worker_pool(1, neg) as pool:
        print(list(pool.map(neg, [1, 2])))
"""


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path) -> None:
    """A user with write access to it could run code (rule: no-imports-from-current-folder)."""
    package = tmp_path / "here" / "multiprocessing"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("print('somebody else has written this')")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path / "here", capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[-1, -2]\n", "", 0)
