"""Names, in a dry run, the settings that a table's files lack, by a few footers, and what a rewrite would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from icekeeper.model import DataFile, LiveEntry
from icekeeper.operations.compaction.candidates import Tally
from icekeeper.operations.compaction.payback import rewrite_price
from icekeeper.operations.compaction.written_settings import WantedSettings, files_lacking
from icekeeper.policy import Policy, Strategy
from icekeeper.storage.storage import Storage

__all__ = ["FileSample", "order_document", "settings_document"]

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


def order_document(sample: FileSample, policy: Policy) -> list[dict[str, Any]]:
    """``settings`` for a sort order that no file of the table has yet; passes sort what comes in, not what is there."""
    if not sample.unsorted or sample.unsorted < sample.all.files:
        return []
    return [
        {
            "reason": "sort_order",
            "sampled": sample.all.files,
            "lacking": sample.unsorted,
            "files": sample.all.files,
            "bytes": sample.all.bytes,
            "cost_usd": round(rewrite_price(sample.all.bytes, policy), 9),
            "how": "strategy=sort, rewrite_all=true" if policy.strategy is Strategy.BINPACK else "rewrite_all=true",
        }
    ]


class FileSample:
    """A few Parquet files, evenly from all that pass; never more than twice as many are held."""

    def __init__(
        self,
        is_written: Callable[[str], bool] = lambda path: True,
        lacks_order: Callable[[LiveEntry], bool] = lambda live: False,
    ) -> None:
        """``is_written``: whether there is such a file; what a dry run only expects has no footer.

        ``lacks_order``: whether the rows of a file are not in the table's sort order, which manifests tell.
        """
        self._is_written, self._lacks_order = is_written, lacks_order
        self.all = Tally()
        """All live data files."""
        self.unsorted = 0
        """How many of them have rows that are not in the table's sort order."""
        self.count = 0
        self.bytes = 0
        self._kept: list[str] = []
        self._step = 1

    def watch(self, entries: Iterable[LiveEntry]) -> Iterator[LiveEntry]:
        """The same entries."""
        for live in entries:
            self.all.add(live.entry.file)
            self.unsorted += self._lacks_order(live)
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
