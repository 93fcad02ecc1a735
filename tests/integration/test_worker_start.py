"""What a worker of the local engine imports: the work, once for all workers, and nothing of the caller's program."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.worker_processes import end_worker_server, worker_pool
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from support.engine_work import has_module, process_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are no forks")


def test_work_is_imported_by_the_server() -> None:
    """Else each worker imports it by itself, half a second each."""
    end_worker_server()
    with worker_pool(1, rewrite_group) as pool:
        assert pool.submit(has_module, rewrite_group.__module__).result()
    end_worker_server()


def test_workers_do_not_run_the_program_that_starts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a guard would begin once more in each worker."""
    program, mark = tmp_path / "program.py", tmp_path / "mark"
    program.write_text(f"open({str(mark)!r}, 'a').write('it ran')")
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    end_worker_server()
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert len(LocalEngine(2).map(process_of, [1, 2], lambda done: None)) == 2
    end_worker_server()
    assert not mark.exists()
