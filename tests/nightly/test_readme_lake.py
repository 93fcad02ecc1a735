"""The shell lines of the README create its first table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_first_table_of_the_readme_is_created_and_detected(tmp_path: Path) -> None:
    section = README.read_text().partition("## From nothing to a healthy table\n")[2]
    block = section.partition("```sh\n")[2].partition("```")[0]
    lines = block.replace("/tmp/lake", str(tmp_path / "lake"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))}
    kept |= {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-ec", lines], env=kept, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = "shop.orders  priority 0.91  12 data files of 956 B on average are below 192 MB; "
    assert f"{found}12 manifests reach min_manifests_to_rewrite 5" in done.stdout.splitlines()
