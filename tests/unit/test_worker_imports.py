"""What a worker imports before its first task, in a fresh interpreter: each of them pays for it, or their server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

IMPORTS = "import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
# Of pyiceberg a worker needs types, transforms and expressions: a fifth of its modules.
HEAVY = (
    *("boto3", "pandas", "pyarrow.dataset", "pydantic.v1", "pyspark", "rich", "sqlalchemy", "typer"),
    *("pyiceberg.catalog", "pyiceberg.io.pyarrow", "pyiceberg.manifest", "pyiceberg.table"),
    *("icekeeper.catalogs", "icekeeper.commit", "icekeeper.pass_context", "icekeeper.runtime", "icekeeper.state"),
)


@pytest.mark.parametrize(
    ("module", "most"),
    [
        ("icekeeper.operations.compaction.rewrite", 454),
        ("icekeeper.operations.compaction.clustering.work", 444),
        ("icekeeper.operations.statistics.sketch_task", 392),
        ("icekeeper.operations.position_deletes.merge", 378),
        ("icekeeper.engines.worker_processes", 170),
    ],
)
def test_a_worker_imports_what_its_work_needs(module: str, most: int) -> None:
    words = [sys.executable, "-c", IMPORTS.format(module=module)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    assert [name for name in modules if name.startswith(tuple(f"{one}." for one in HEAVY)) or name in HEAVY] == []
    assert len(modules) <= most
