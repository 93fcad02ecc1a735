"""A table that is made once and set back before every run, so that all contestants find the same files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables.table_writer import START

_VERSION = "1"
"""Of what the makers make: another one makes every table anew."""


@dataclass(frozen=True, slots=True)
class KeptTable:
    """Where the table is, and where a second link to each of its files is."""

    folder: Path
    originals: Path

    @property
    def metadata_location(self) -> str:
        return str(self.folder / START)

    @property
    def data_files(self) -> list[Path]:
        """The Parquet files of the table as it was made, delete files among them."""
        found = sorted(path.relative_to(self.originals) for path in (self.originals / "data").rglob("*.parquet"))
        return [self.folder / path for path in found]

    @property
    def data_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.originals / "data").rglob("*.parquet"))

    def set_back(self) -> None:
        """Remove what a run added, bring back what it removed."""
        there, wanted = _inodes(self.folder), _inodes(self.originals)
        for name in there.keys() - wanted.keys():
            (self.folder / name).unlink()
        for name, inode in wanted.items():
            if there.get(name) != inode:
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                os.link(self.originals / name, path)


def _inodes(folder: Path) -> dict[str, int]:
    """The inode of each file below a folder, by its relative path; a table may have a million."""
    found, pending = dict[str, int](), [""]
    while pending:
        above = pending.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{above}{entry.name}/")
                else:
                    found[f"{above}{entry.name}"] = entry.inode()
    return found


def kept_table(work: Path, name: str, make: Callable[[Path], None]) -> KeptTable:
    """The table of that name, made now unless it is there; ``make`` writes it into the folder that it is given."""
    folder, originals = work / "warehouse" / "bench" / name, work / "originals" / name
    mark = work / "originals" / f"{name}.made-{_VERSION}"
    table = KeptTable(folder, originals)
    if not mark.exists():
        for path in (folder, originals):
            shutil.rmtree(path, ignore_errors=True)
        make(folder)
        shutil.copytree(folder, originals, copy_function=os.link)
        mark.touch()
    table.set_back()
    return table
