"""``iceberg-compaction``, the Rust library over DataFusion, through its Python bindings; the suite's REST catalog.

The catalog runs in the suite's process: its CPU is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import iceberg_compaction as rust  # type: ignore[import-not-found]  # installed in the peers' environment only

from benchmarks.peers.serve import Answer, Task, serve

_S3 = ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.region")


def _operation(task: Task, catalog: Any, table: str) -> Any:
    match task["operation"]:
        case "compact":
            config = rust.CompactionConfig(
                strategy="full",
                target_file_size_bytes=task["target_bytes"],
                max_file_count_per_partition=1,
                min_size_per_partition=task["target_bytes"],
            )
            return rust.Compaction(catalog, table, config)
        case "rewrite_manifests":
            return rust.RewriteManifests(catalog, table, rust.RewriteManifestsConfig())
        case "expire_snapshots":
            config = rust.ExpireSnapshotsConfig(retain_last=task["keep"], max_snapshot_age_secs=1)
            return rust.ExpireSnapshots(catalog, table, config)
        case "remove_orphans":
            return rust.RemoveOrphanFiles(catalog, table, rust.RemoveOrphanFilesConfig(dry_run=True))
    raise ValueError(f"iceberg-compaction has no {task['operation']}")


def prepare(task: Task) -> Callable[[], Answer]:
    """The table is registered in the catalog already."""
    s3 = {key: task["catalog"][key] for key in _S3} | {"s3.path-style-access": "true"} if "catalog" in task else None
    catalog = rust.RestCatalog("bench", uri=task["rest_uri"], warehouse=task["warehouse"], properties=s3)
    operation = _operation(task, catalog, task["rest_table"])

    def run() -> Answer:
        result = operation.run()
        if result is None:
            raise RuntimeError("it found nothing to do")
        return {"rest_table": task["rest_table"], "summary": repr(result)}

    return run


if __name__ == "__main__":
    serve(prepare)
