"""Names, in a dry run, the settings that a table's files lack, by a few footers, and what a rewrite would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from icekeeper.model import DataFile, LiveEntry
from icekeeper.operations.compaction.payback import rewrite_price
from icekeeper.operations.compaction.written_settings import WantedSettings, files_lacking
from icekeeper.policy import Policy
from icekeeper.storage.storage import Storage

__all__ = ["FileSample", "settings_document"]

_SAMPLE = 16


def settings_document(
    sample: FileSample, wanted: WantedSettings, storage: Storage, policy: Policy
) -> list[dict[str, Any]]:
    """``settings`` of a plan in ``plan --json``: one entry per reason that sampled files give; sums are estimates."""
    chosen = sample.paths()
    counts = Counter(reason for lacks in files_lacking(chosen, wanted, storage).values() for reason in lacks)
    return [
        {
            "reason": reason.value,
            "sampled": len(chosen),
            "lacking": count,
            "files": round(sample.count * count / len(chosen)),
            "bytes": round(sample.bytes * count / len(chosen)),
            "cost_usd": round(rewrite_price(round(sample.bytes * count / len(chosen)), policy), 9),
            "how": f"rewrite_reason={reason.value}",
        }
        for reason, count in sorted(counts.items())
    ]


class FileSample:
    """A few Parquet files, evenly from all that pass; never more than twice as many are held."""

    def __init__(self, is_written: Callable[[str], bool] = lambda path: True) -> None:
        """``is_written``: whether there is such a file; what a dry run only expects has no footer."""
        self._is_written = is_written
        self.count = 0
        self.bytes = 0
        self._kept: list[str] = []
        self._step = 1

    def watch(self, entries: Iterable[LiveEntry]) -> Iterator[LiveEntry]:
        """The same entries."""
        for live in entries:
            if live.entry.file.file_format.upper() == "PARQUET" and self._is_written(live.entry.file.file_path):
                self._add(live.entry.file)
            yield live

    def paths(self) -> list[str]:
        return self._kept[:: max(1, -(-len(self._kept) // _SAMPLE))]

    def _add(self, file: DataFile) -> None:
        if self.count % self._step == 0:
            self._kept.append(file.file_path)
        self.count += 1
        self.bytes += file.file_size_in_bytes
        if len(self._kept) > 2 * _SAMPLE:
            self._kept, self._step = self._kept[::2], 2 * self._step
