"""``python -m artifacts.supply_chain sbom|audit``: what the locks name, and what is known against it.

Both run in an environment of their own that holds ``cyclonedx-bom`` and ``pip-audit`` (``make sbom``, ``make audit``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.locks import GLUE_LOCK, LAYER_LOCK, LOCKS
from artifacts.pins import ROOT, normalized, read_pins, version

SBOMS = ROOT / "build" / "sbom"


def complaints(pins: Mapping[str, str], report: Mapping[str, Any]) -> Iterator[str]:
    """What a report of pip-audit says against these versions, a line each; what it has not looked at counts.

    pip-audit ends with 0 and "No known vulnerabilities found" where it could ask nobody.
    """
    told = {normalized(one["name"]): one for one in report["dependencies"]}
    for name, pinned in sorted(pins.items()):
        one = told.get(name, {})
        if one.get("version") != pinned or "vulns" not in one:
            yield f"{name} {pinned} was not scanned: {one.get('skip_reason', 'the report does not name it')}"
        for found in one.get("vulns", ()):
            names = ", ".join((found["id"], *found.get("aliases", ())))
            yield f"{name} {pinned}: {names}; fixed in {', '.join(found.get('fix_versions', ())) or 'no version'}"


def _sbom() -> None:
    """Write a bill of each lock of what is deployed, in CycloneDX; no network is needed."""
    SBOMS.mkdir(parents=True, exist_ok=True)
    for lock in (LAYER_LOCK, GLUE_LOCK):
        path = SBOMS / f"icekeeper-{version()}-{lock.stem}.cdx.json"
        told = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "-o", str(path), str(lock)]
        # It warns that a lock does not say who needs whom.
        quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
        subprocess.run([_beside("cyclonedx-py"), "requirements", *told], check=True, env=quiet)
        sys.stdout.write(f"{path.relative_to(ROOT)}: {len(read_pins(lock))} packages\n")


def _audit() -> int:
    """Ask for known vulnerabilities of every version that is locked; the exit code."""
    found = [f"{lock.name}: {line}" for lock in LOCKS for line in complaints(read_pins(lock), _report_on(lock))]
    sys.stderr.write("".join(f"{ascii(line)[1:-1]}\n" for line in found))
    if not found:
        sys.stdout.write("every locked version was scanned, and nothing is known against it\n")
    return 1 if found else 0


def _report_on(lock: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        wanted = ["--requirement", str(lock), "--require-hashes", "--disable-pip"]
        done = subprocess.run([_beside("pip-audit"), *wanted, "--format", "json", "--output", str(report)])
        # 1: something is known.
        if done.returncode not in (0, 1) or not report.exists():
            raise SystemExit(f"pip-audit failed on {lock.name}, so nothing was scanned; its own words are above")
        return dict(json.loads(report.read_text()))


def _beside(tool: str) -> str:
    return str(Path(sys.executable).parent / tool)


if __name__ == "__main__":
    if sys.argv[1:] not in (["sbom"], ["audit"]):
        raise SystemExit("one of sbom and audit must be named")
    if sys.argv[1] == "audit":
        sys.exit(_audit())
    _sbom()
