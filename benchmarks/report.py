"""Results as JSON and as Markdown: measured, wanted, met or missed, and the ratios of the last dated table."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contestants import CONTESTANTS
from benchmarks.measure import medians
from benchmarks.peers.environment import PINS, wanted_packages
from benchmarks.row import Target
from benchmarks.run_rows import RowFound

_FIGURES = {
    "wall_s": ("wall", "s"),
    "cpu_s": ("CPU", "s"),
    "peak_mb": ("memory", "MB"),
    "peak_mb_beside_java": ("memory", "MB"),
    "peak_mb_of_worker": ("memory of a process", "MB"),
    "files_opened": ("files opened", ""),
    "requests": ("requests", ""),
    "bytes_ratio": ("bytes through us", "× the data"),
    "output_ratio": ("size of the output", "× the input"),
}


_MORE = (
    "files_opened",
    "requests",
    "store_mb",
    "bytes_ratio",
    "output_ratio",
    "output_mb",
    "row_groups",
    "cpu_s_per_gb",
    "scan_s",
)
"""Figures of some rows only: files that readers open for the row's predicates; what passed to and from a store, and
what is left there; the size and row groups of the output, CPU seconds for a gigabyte of it, and DuckDB's to scan it."""


_LONGEST_REASON = 60
"""Of a contestant that was not measured; performance.json has the whole sentence."""


def as_json(found: RowFound) -> dict[str, Any]:
    """All results of a row: every figure of every run, and whether the medians meet each target."""
    entrants: dict[str, Any] = {}
    for name, entry in found.found.items():
        entrant, row = CONTESTANTS[name], found.row
        entrants[name] = {
            "title": entrant.title,
            "command": f"python -m benchmarks.peers.{entrant.module}",
            "task": {"operation": row.operation, "settings": dict(row.settings), **row.task, **entrant.task},
        }
        if entry.costs:
            median = asdict(medians(entry.costs)) | entry.more
            if median.get("output_mb"):
                median["cpu_s_per_gb"] = median["cpu_s"] / median["output_mb"] * 1000
            entrants[name] |= {"median": _rounded(median), "proof": entry.proof}
            entrants[name] |= {"runs": [_rounded(asdict(cost)) for cost in entry.costs], "warm_ups": entry.warm_ups}
        else:
            entrants[name]["error"] = entry.error
    return {
        "title": found.row.title,
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": _machine(),
        "packages": _packages(),
        "scale": found.scale,
        "rounds": found.rounds,
        "data": dict(found.data),
        "entrants": entrants,
        "targets": [_judged(target, entrants, found.scale) for target in found.row.targets],
    }


_GROWS = frozenset({"wall_s", "cpu_s", "requests"})
"""Figures that grow with the table: a limit for the whole table does not apply to a part of it."""


def _judged(target: Target, entrants: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """The target in words, what was measured (``None``: nothing), and whether it is met (``None``: nobody knows)."""
    figure, unit = _FIGURES[target.figure]
    ours = entrants.get(target.ours, {}).get("median")
    if target.against is None:
        text, measured = f"{figure} ≤ {target.at_most:g} {unit}".rstrip(), ours and ours[target.figure]
    else:
        text = f"{figure} ≤ {target.at_most:g} × {CONTESTANTS[target.against].title}"
        theirs = entrants.get(target.against, {}).get("median")
        measured = ours[target.figure] / max(theirs[target.figure], 0.01) if ours and theirs else None
    is_of_part = target.against is None and target.figure in _GROWS and scale < 1
    return {
        "ours": CONTESTANTS[target.ours].title,
        "text": text,
        "measured": None if measured is None else round(measured, 3),
        "met": None if measured is None or is_of_part else measured <= target.at_most,
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def contest_table(row: Mapping[str, Any]) -> Iterator[str]:
    """A row's contestants, as lines of Markdown."""
    data = row["data"]
    yield (
        f"{data['files']:,} files, {data['bytes'] / 1e6:,.0f} MB, {data['rows']:,} rows; scale {row['scale']:g}, "
        f"medians of {row['rounds']}, {row['date']}, commit {row['commit']}, load {row['machine']['load']:g}."
    )
    yield ""
    yield "| contestant | wall s | CPU s | MB | largest process | also |"
    yield "|---|---|---|---|---|---|"
    for entrant in row["entrants"].values():
        yield f"| {_contestant(entrant)} |"


_JAVA = "Iceberg-Java"


def page_tables(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """All rows in one table: wall seconds, CPU seconds and memory in MB; performance.json has all other figures."""
    yield "| work | Icekeeper | Iceberg-Java | others |"
    yield "|---|---|---|---|"
    for row in rows.values():
        scale = "" if row["scale"] == 1 else f", scale {row['scale']:g}"
        size = f", {row['data']['bytes'] / 1e6:,.0f} MB" if row["data"]["rows"] else ""
        found = {entrant["title"]: _three(entrant) for entrant in row["entrants"].values() if "error" not in entrant}
        ours = [_named(title, figures) for title, figures in found.items() if "cekeeper" in title]
        java = [figures for title, figures in found.items() if title.startswith(_JAVA)]
        others = [
            f"{title}: {figures}"
            for title, figures in found.items()
            if "cekeeper" not in title and not title.startswith(_JAVA)
        ]
        yield f"| {row['title']}{size}{scale} | {'; '.join(ours)} | {''.join(java)} | {'; '.join(others)} |"


def _three(entrant: Mapping[str, Any]) -> str:
    m = entrant["median"]
    return f"{m['wall_s']:.2f}, {m['cpu_s']:.2f}, {m['peak_mb']:.0f}"


def _named(title: str, figures: str) -> str:
    """The figures, with the title where it says more than the product's name."""
    more = title.removeprefix("Icekeeper").lstrip(", ")
    return f"{more}: {figures}" if more else figures


def _contestant(entrant: Mapping[str, Any]) -> str:
    """Cells of a table; the largest process only where it is not all of the memory."""
    if "error" in entrant:
        why = textwrap.shorten(entrant["error"].replace("|", "/"), _LONGEST_REASON, placeholder=" …")
        return f"{entrant['title']} | not measured: {why} | | | |"
    m = entrant["median"]
    all_memory, largest = (f"{m.get(key, m['peak_mb']):.0f}" for key in ("peak_mb", "peak_mb_of_worker"))
    more = ", ".join(f"{name.replace('_', ' ')} {m[name]:.3g}" for name in _MORE if name in m)
    beside = "" if largest == all_memory else largest
    return f"{entrant['title']} | {m['wall_s']:.2f} | {m['cpu_s']:.2f} | {all_memory} | {beside} | {more}"


def target_lines(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Every target of every row, as lines of Markdown; a title or name is written once where it repeats."""
    yield "| work | who | target | measured | |"
    yield "|---|---|---|---|---|"
    for row in rows.values():
        before = ("", "")
        for target in row["targets"]:
            verdict = {"missed": "**missed**"}.get(_verdict(target), _verdict(target))
            measured = "" if target["measured"] is None else f"{target['measured']:.3g}"
            title = "" if before[0] == row["title"] else row["title"]
            who = "" if before == (row["title"], target["ours"]) else target["ours"]
            before = (row["title"], target["ours"])
            yield f"| {title} | {who} | {target['text']} | {measured} | {verdict} |"


def _verdict(target: Mapping[str, Any]) -> str:
    if target["met"] is None:
        return "not measured" if target["measured"] is None else "only at full size"
    return "met" if target["met"] else "missed"


def beside_last(rows: Mapping[str, Mapping[str, Any]], last: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What was measured now beside what the last dated table says, for people to judge; nothing fails by it.

    Figures of another processor say nothing.
    """
    for key, row in rows.items():
        then_row = last.get(key, {})
        is_same_machine = then_row.get("machine", {}).get("processor") == row["machine"]["processor"]
        before = {(t["ours"], t["text"]): t for t in then_row.get("targets", ()) if is_same_machine}
        for target in row["targets"]:
            then = before.get((target["ours"], target["text"]), {}).get("measured")
            now = target["measured"]
            change = f"{now / then:5.2f} × of then" if now is not None and then else ""
            shown = [f"{value:8.3g}" if value is not None else "       –" for value in (now, then)]
            verdict = _verdict(target)
            yield (
                f"{row['title'][:44]:44} {target['ours'][:26]:26} {target['text'][:44]:44} now {shown[0]}, "
                f"then {shown[1]}  {change:16} {verdict}"
            )


def run_line(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """When, of which commit and where the rows were measured; several of each if they are not of one run."""

    def all_of(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    machines = [row["machine"] for row in rows.values()]
    loads = [machine["load"] for machine in machines]
    return (
        f"Measured on {all_of(row['date'] for row in rows.values())}, commit "
        f"{all_of(row['commit'] for row in rows.values())}, {all_of(one['processor'] for one in machines)}, "
        f"{all_of(one['cores'] for one in machines)} cores; load {min(loads):g} to {max(loads):g} at the end of a row."
    )


def _packages() -> dict[str, str]:
    """The peers' pinned versions, and those of what Icekeeper's own environment measures with."""
    pins = (line.partition("==") for line in wanted_packages(PINS.read_text()))
    ours = {f"{name} (Icekeeper's)": version(name) for name in ("pyarrow", "pyspark", "pyiceberg", "duckdb")}
    return {name: number for name, _, number in pins} | ours


def _commit() -> str:
    """The commit, with ``-dirty`` if files differ from it; rows measured before may be recorded in ``docs``."""
    git, root = ["git", "-C", str(Path(__file__).parents[1])], [":(top)", ":(top,exclude)docs"]
    found = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False)
    differs = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *root], capture_output=True, check=False)
    return (found.stdout.strip() or "unknown") + "-dirty" * (found.returncode == 0 and differs.returncode != 0)


def _machine() -> dict[str, Any]:
    """What says how far figures may be compared; ``load`` is that of the last minute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 2**30),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
