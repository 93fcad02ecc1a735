"""Whether a pin holds against the table bucket's own expiry, which knows nothing of pins (rule 140)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import Catalog
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.ownership import why_bucket_expires

__all__ = ["pin_warnings"]


def pin_warnings(catalog: Catalog, table: TableName) -> Sequence[str]:
    """Why a pinned snapshot may expire all the same; empty where nobody but Icekeeper expires snapshots.

    Never raises: the pin is there, whatever the bucket answers.
    """
    built_in = catalog.built_in_maintenance
    if built_in is None:
        return ()
    try:
        bucket = built_in.read(table)
        if bucket.does(BuiltIn.SNAPSHOT_MANAGEMENT):
            bucket = replace(bucket, jobs=built_in.jobs(table))
    except StorageError as error:
        return (f"whether the table bucket expires snapshots itself is not known ({error}): no pin keeps it from that",)
    why = why_bucket_expires(bucket)
    return () if why is None else (why,)
