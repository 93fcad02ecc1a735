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
        wanted = {path.relative_to(self.originals): path for path in self.originals.rglob("*") if path.is_file()}
        for path in self.folder.rglob("*"):
            if path.is_file() and path.relative_to(self.folder) not in wanted:
                path.unlink()
        for name, original in wanted.items():
            path = self.folder / name
            if not path.exists() or not os.path.samefile(path, original):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                os.link(original, path)


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
