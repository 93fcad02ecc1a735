"""The ``rewrite_manifests`` operation: fewer, larger manifests with the same live entries."""

from __future__ import annotations

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.manifest_size import manifest_header_bytes, manifest_target_bytes
from icekeeper.commit.transaction import PreparedCommit
from icekeeper.model import ManifestFile, Nothing
from icekeeper.operations.context import OperationContext, branch_head, require_writable, stopwatch
from icekeeper.operations.manifests import NO_ENTRIES, ManifestPlan, lay_out, plan_manifests
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded

__all__ = ["rewrite_manifests"]

_OPERATION = Operation.REWRITE_MANIFESTS


def rewrite_manifests(context: OperationContext) -> OperationOutcome:
    """Merge data manifests; summary and metric keys are those of seed 000.

    The whole plan is made again on every head, since nothing expensive precedes the commit.

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        rewritten: tuple[ManifestFile, ...] = ()
        entries_total = outputs = 0

        def plan(head: LoadedTable) -> tuple[ManifestPlan | Nothing, list[ManifestFile]]:
            require_writable(head.metadata)
            snapshot = branch_head(head.metadata, context.policy.branch)
            manifests = [] if snapshot is None else context.reader(head).manifests(snapshot)
            planned = plan_manifests(
                snapshot,
                manifests,
                context.policy,
                target_bytes=manifest_target_bytes(head.metadata),
                header_bytes=manifest_header_bytes(head.metadata),
            )
            return planned, manifests

        def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
            nonlocal rewritten, entries_total, outputs
            planned, manifests = plan(head)
            if isinstance(planned, Nothing):
                return planned
            reader = context.reader(head)
            entries = (
                (manifest.partition_spec_id, entry)
                for manifest, found in reader.entries(planned.manifests)
                for entry in found
            )
            chunks = lay_out(head.metadata, planned, entries)
            if not chunks:
                return Nothing(NO_ENTRIES)
            rewritten = planned.manifests
            outputs = sum(len(per_spec) for per_spec in chunks.values())
            entries_total = sum(len(chunk) for per_spec in chunks.values() for chunk in per_spec)
            writer = context.snapshot_writer(head)
            return writer.replace_manifests(chunks, planned.manifests, manifests)

        if context.dry_run:
            planned, _ = plan(loaded)
            if isinstance(planned, Nothing):
                return skipped(_OPERATION, planned.reason)
            count, into = len(planned.manifests), sum(planned.outputs.values())
            return succeeded(
                _OPERATION,
                f"would rewrite {count} manifests into {into}",
                files_planned=[m.manifest_path for m in planned.manifests],
            )
        committed = context.commit(loaded, prepare)
        if isinstance(committed, Nothing):
            return skipped(_OPERATION, committed.reason, metrics={"rewrite_manifests.duration_ms": elapsed_ms()})
        return succeeded(
            _OPERATION,
            f"rewrote {len(rewritten)} manifests into {outputs} ({entries_total} entries)",
            snapshot_ids=(committed.prepared.snapshot_id or 0,),
            metrics={
                "rewrite_manifests.manifests_rewritten": len(rewritten),
                "rewrite_manifests.manifests_written": outputs,
                "rewrite_manifests.entries_total": entries_total,
                "rewrite_manifests.duration_ms": elapsed_ms(),
            },
            files_planned=[m.manifest_path for m in rewritten],
        )
