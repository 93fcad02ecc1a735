"""Manifests of a table that is partitioned by one number, described as a manifest list does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.single_value import encode
from icekeeper.model import ManifestContent, ManifestFile, Nothing, PartitionFieldSummary
from icekeeper.operations.manifests.plan_manifests import ManifestPlan, plan_manifests
from support.plans import HEAD, MB, policy, table

_TARGET = 8 * MB
_FIELD = {"field-id": 1000, "source-id": 1, "name": "p", "transform": "identity"}
_SPECS: dict[str, Any] = {"partition-specs": [{"spec-id": 0, "fields": [_FIELD]}]}
DAYS = table(**_SPECS)


def day_manifest(number: int, low: int, high: int, megabytes: float = 8) -> ManifestFile:
    """A manifest with files of the partitions from ``low`` to ``high``, younger than those with lower numbers."""
    bounds = (encode("long", low), encode("long", high))
    return ManifestFile(
        manifest_path=f"d{number}",
        manifest_length=int(megabytes * MB),
        partition_spec_id=0,
        sequence_number=number,
        min_sequence_number=number,
        added_snapshot_id=HEAD,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        partitions=(PartitionFieldSummary(False, None, *bounds),),
    )


def planned(metadata: TableMetadata, manifests: Sequence[ManifestFile], least: int) -> ManifestPlan | Nothing:
    """The plan with a target of 8 MB for manifests without headers."""
    return plan_manifests(
        metadata,
        metadata.snapshots[HEAD],
        manifests,
        policy(min_manifests_to_rewrite=least),
        target_bytes=_TARGET,
        header_bytes={(0, content): 0 for content in ManifestContent},
    )
