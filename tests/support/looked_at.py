"""How tables look to health: by a document, by the summary of its head."""

from __future__ import annotations

from typing import Any

from icekeeper.errors import PolicyError
from icekeeper.health.examine import examine
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LakeStats
from support.settings import MB, NOW_MS, policy, table

IDENTITY = TableIdentity("C", "s3://prod-lake/", TableName(("ns",), "t"), "u")
SUMMARY = {
    "total-data-files": "10",
    "total-delete-files": "0",
    "total-position-deletes": "0",
    "total-equality-deletes": "0",
    "total-records": "1000",
    "total-files-size": str(10 * 400 * MB),
    "manifests-created": "1",
    "manifests-kept": "2",
}


def health(summary: object = None, resolved: ResolvedPolicy | PolicyError | None = None, **more: Any) -> LakeStats:
    return of(table(SUMMARY if summary is None else summary, **more), resolved)


def of(metadata: TableMetadata, resolved: ResolvedPolicy | PolicyError | None = None, **more: Any) -> LakeStats:
    return examine(IDENTITY, metadata, resolved or policy(), now_ms=NOW_MS, **more)
