"""Manifests in memory, rewritten by the real work unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from icekeeper.engines.engine import Engine
from icekeeper.errors import StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest
from icekeeper.metadata.manifest_write import EncodedManifest
from icekeeper.model import ManifestEntry, ManifestFile
from icekeeper.operations.manifests import lanes
from icekeeper.operations.manifests import rewrite_manifests as write_manifests
from icekeeper.operations.manifests.plan_manifests import ManifestPlan
from icekeeper.operations.manifests.rewrite_manifests import PlannedRewrite, RewrittenManifests, write_planned
from icekeeper.storage.paths import PathSet


class MemoryStorage:
    """Stands for a table's files; every instance sees the same."""

    files: ClassVar[dict[str, bytes]] = {}

    def __init__(self, properties: Mapping[str, str]) -> None:
        pass

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise StorageError(f"{path} does not exist")
        return self.files[path]

    def write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.files.pop(path, None)


@contextmanager
def memory_storage(stored: Sequence[EncodedManifest], lane_bytes: int | None = None) -> Iterator[dict[str, bytes]]:
    """The work unit finds these manifests; lanes are cut at ``lane_bytes``, where given, and at two targets."""
    MemoryStorage.files = {m.manifest.manifest_path: m.data for m in stored}
    with mock.patch.object(lanes, "Storage", MemoryStorage):
        if lane_bytes is None:
            yield MemoryStorage.files
            return
        with mock.patch.multiple(write_manifests, _LANE_BYTES=lane_bytes, _SPLIT_BYTES=lane_bytes):
            yield MemoryStorage.files


def rewritten(
    metadata: TableMetadata,
    stored: Sequence[EncodedManifest],
    plan: ManifestPlan,
    target_bytes: int,
    engine: Engine,
    lane_bytes: int | None = None,
) -> tuple[list[EncodedManifest], RewrittenManifests]:
    """The manifests of the table after the plan, and what was written for it."""
    into, recorded = RewrittenManifests(), set[str]()
    storage: Any = MemoryStorage({})
    with memory_storage(stored, lane_bytes) as files:
        write_planned(
            PlannedRewrite(metadata, plan, {}, target_bytes, storage, storage.read),
            engine,
            into=into,
            will_write=recorded.update,
            on_done=lambda done, total: None,
        )
        gone = {m.manifest_path for m in plan.manifests}
        kept = [m for m in stored if m.manifest.manifest_path not in gone and m.manifest.may_have_live_files]
        assert [m.manifest_path for m in into.written] == into.staged
        assert all(PathSet(recorded).may_contain(path) for path in into.staged)
        assert len(files) == len(stored) + len(into.written)
        return [*(EncodedManifest(files[m.manifest_path], m) for m in into.written), *kept], into


def entries_of(metadata: TableMetadata, stored: Iterable[EncodedManifest]) -> list[tuple[ManifestFile, ManifestEntry]]:
    """Every entry with its manifest."""
    return [
        (m.manifest, entry)
        for m in stored
        for entry in decode_manifest(m.data, m.manifest, metadata.specs[m.manifest.partition_spec_id])
    ]
