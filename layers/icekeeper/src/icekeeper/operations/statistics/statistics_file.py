"""Encodes the Puffin file of a plan: blobs that are carried over, and those just computed.

Sketches are stored as they are: hashes do not compress.  Source: Puffin specification, blob type
``apache-datasketches-theta-v1``; Spark and Trino read the property ``ndv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from icekeeper.metadata.puffin import THETA_SKETCH, PuffinBlob, PuffinFile, encode_blobs
from icekeeper.metadata.statistics import ThetaSketch, encode_theta
from icekeeper.operations.statistics.plan import TYPE_KEY, StatisticsPlan, StoredBlob

__all__ = ["statistics_file"]


def statistics_file(
    plan: StatisticsPlan,
    fetched: Mapping[StoredBlob, tuple[PuffinBlob, bytes]],
    computed: Mapping[int, tuple[str, ThetaSketch]],
) -> PuffinFile:
    """The file.  Carried blobs keep the snapshot that they were computed from; the others get the plan's."""
    contents = [fetched[stored] for stored in plan.carried]
    for field_id, (kind, sketch) in computed.items():
        blob = PuffinBlob(
            THETA_SKETCH,
            (field_id,),
            0,
            0,
            {"ndv": str(int(sketch.estimate)), TYPE_KEY: kind},
            snapshot_id=plan.snapshot_id,
            sequence_number=plan.sequence_number,
        )
        contents.append((blob, encode_theta(sketch)))
    return encode_blobs(contents, {"created-by": f"icekeeper {version('icekeeper')}"})
