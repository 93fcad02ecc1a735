"""The evolved table before and after a pass that keeps its snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.model import DataFile, ManifestFile
from icekeeper.report.outcome import PassOutcome
from support.evolved import evolved_table
from support.maintained_table import MaintainedTable, registered_table
from support.pass_settings import KEEPING_SNAPSHOTS


@dataclass(frozen=True, slots=True)
class Compacted:
    """An evolved table, as it was and as a pass left it; both metadata files still stand."""

    format_version: int
    before: str
    after: str
    table: MaintainedTable
    outcome: PassOutcome

    def snapshot_ids(self) -> list[int]:
        return list(self.table.reader.metadata.snapshots)

    def manifests(self) -> list[ManifestFile]:
        reader = self.table.reader
        snapshot = reader.metadata.current_snapshot
        assert snapshot is not None
        return reader.manifests(snapshot)

    def files(self) -> dict[str, DataFile]:
        """Live data files by path."""
        found = self.table.reader.entries(self.manifests())
        return {e.file.file_path: e.file for _, entries in found for e in entries if e.is_live}

    def outputs(self) -> dict[str, DataFile]:
        """Those that we wrote."""
        return {path: file for path, file in self.files().items() if "/compact-" in path}


def compact_evolved(
    format_version: int, folder: Path, *, with_time: bool = False, output_spec: str = "keep"
) -> Compacted:
    """Files stay in their partition specs unless told otherwise: what merges with what is then plain to see."""
    catalog = SqlCatalog("made", uri=f"sqlite:///{folder / 'made.db'}", warehouse=(folder / "wh").as_uri())
    before = evolved_table(catalog, format_version, with_time=with_time).metadata_location
    catalog.close()
    table = registered_table(before, folder)
    outcome = table.maintain(**KEEPING_SNAPSHOTS, output_spec=output_spec)
    return Compacted(format_version, before, table.metadata_location, table, outcome)
