"""On a session of our own, parts that lose what they were sent are begun again by us, under other numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from dataclasses import dataclass, replace
from pathlib import Path
from icekeeper.engines.spark import SparkEngine, local_session

@dataclass(frozen=True)
class Part:
    folder: str
    attempt: int = 0

    def in_attempt(self, attempt):
        return replace(self, attempt=attempt)

def digits(number):
    for digit in str(number):
        yield int(digit), number

def losing(part, items):
    found = sorted(items)
    mark = Path(part.folder) / "lost"
    if not mark.exists():
        mark.touch()
        for path in Path(part.folder).glob("**/shuffle_*"):
            path.unlink()
    return part.attempt, found

with local_session() as session:
    settings = session.sparkContext.getConf()
    engine = SparkEngine(session.sparkContext)
    found = engine.exchange(digits, [10, 21, 32, 43, 54], losing, [Part(sys.argv[1])] * 6, lambda done: None)
    (large,) = engine.map(str.encode, ["x" * 2_000_000], lambda done: None)
    print(json.dumps([settings.get("spark.stage.maxConsecutiveAttempts"), len(large), found]))
"""


def test_spark_begins_no_stage_twice_on_our_own_session(tmp_path: Path) -> None:
    """The fault aborts Spark's job; the second run's attempts count from 4, and large results arrive as before."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    attempts, large, found = json.loads(done.stdout.splitlines()[-1])
    assert attempts == "1"
    assert large == 2_000_000
    assert found == [[4, numbers] for numbers in ([10], [10, 21], [21, 32], [32, 43], [43, 54], [54])]
