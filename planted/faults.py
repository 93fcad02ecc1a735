"""The faults: what each changes in the code, and the tests that must fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A piece of code and the faulty piece in its place.

    ``file`` is below the package's folder.  ``code`` stands there exactly once.  ``tests`` are what pytest runs.
    """

    name: str
    file: str
    code: str
    faulty: str
    tests: tuple[str, ...]


# Which snapshots expire, and which files that frees.
_EXPIRY = (
    Fault(
        "a user's policy file is read although others may shorten its retention",
        "pass_context/table_policy.py",
        "if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):",
        "if status.st_uid != os.getuid():",
        ("tests/integration/test_policy_file.py",),
    ),
    Fault(
        "a snapshot expires at the very age that the policy keeps",
        "operations/expiry/retention.py",
        "now_ms - snapshot.timestamp_ms <= max_age_ms",
        "now_ms - snapshot.timestamp_ms < max_age_ms",
        ("tests/unit/test_expiry.py", "tests/property/test_snapshot_retention.py"),
    ),
    Fault(
        "one snapshot fewer is kept than the policy says",
        "operations/expiry/retention.py",
        "newest_first[: policy.max_snapshots_to_keep]",
        "newest_first[: policy.max_snapshots_to_keep - 1]",
        ("tests/unit/test_expiry.py", "tests/property/test_snapshot_retention.py"),
    ),
    Fault(
        "expiry overlooks pins",
        "operations/expiry/retention.py",
        "    keep |= metadata.behind(pinned)\n    for_writers",
        "    for_writers",
        ("tests/unit/test_expiry.py", "tests/property/test_snapshot_retention.py"),
    ),
    Fault(
        "expiry cuts a streaming writer's way to its last commit",
        "operations/expiry/retention.py",
        "        keep |= for_writers\n",
        "",
        ("tests/unit/test_expiry.py", "tests/property/test_snapshot_retention.py"),
    ),
    Fault(
        "a file that a kept manifest beside a dropped one needs is freed",
        "operations/expiry/unreferenced.py",
        "rest = [path for path in kept.is_deletes if path not in new]",
        "rest = list[str]()",
        ("tests/property/test_snapshot_retention.py", "tests/unit/test_expiry.py", "tests/integration/test_expiry.py"),
    ),
)

# Which files of a listing are orphans, and the checks before each deletion.
_DELETION = (
    Fault(
        "a file at the very end of its grace period is an orphan",
        "operations/orphans/orphan_rules.py",
        "found.modified_ms is None or found.modified_ms >= older_than_ms",
        "found.modified_ms is None or found.modified_ms > older_than_ms",
        ("tests/unit/test_orphan_plan.py", "tests/integration/test_orphans.py"),
    ),
    Fault(
        "a sweep believes the references from before its listing",
        "operations/orphans/delete_orphans.py",
        "table = _after(context, found.before)",
        "table = found.before",
        ("tests/integration/test_orphan_races.py", "tests/integration/test_orphans.py"),
    ),
    Fault(
        "a sweep deletes files whose names no Iceberg writer gives",
        "operations/orphans/orphan_rules.py",
        "elif not may_sweep(path):",
        "elif may_sweep(path) is None:",
        ("tests/unit/test_orphan_plan.py", "tests/integration/test_sweep_permission.py"),
    ),
    Fault(
        "a sweep asks no neighbour for the files that it needs",
        "deletion/file_needs.py",
        "        left_alone = folders_left_alone(self._table, near.tables)\n        self._share(near)\n",
        "        left_alone = folders_left_alone(self._table, near.tables)\n",
        ("tests/property/test_file_ownership.py", "tests/integration/test_file_needs.py"),
    ),
    Fault(
        "the claims of other tables on a folder are not read",
        "deletion/near_tables.py",
        "for claims in context.state.claims.touching(folder):",
        "for claims in context.state.claims.touching(folder)[:0]:",
        ("tests/property/test_file_ownership.py", "tests/integration/test_claims.py"),
    ),
    Fault(
        "references are not read again before each batch of deletions",
        "deletion/delete.py",
        "        self.needs.look_again()\n",
        "",
        ("tests/integration/test_orphan_races.py", "tests/integration/test_deletion.py", "tests/unit/test_deletion.py"),
    ),
    Fault(
        "a pass that lost its lease goes on deleting",
        "deletion/delete.py",
        "        self.context.limits.require_lease()\n",
        "",
        ("tests/integration/test_table_lease.py", "tests/integration/test_deletion.py", "tests/unit/test_deletion.py"),
    ),
    Fault(
        "a table that was switched off meanwhile is maintained to the end",
        "pass_context/context.py",
        "        self._heed(loaded)\n",
        "",
        ("tests/integration/test_pauses.py", "tests/integration/test_table_settings.py"),
    ),
    Fault(
        "files outside the bound of a table are deleted",
        "storage/storage.py",
        "elif not self._bound.allows(path):",
        "elif path is None:",
        ("tests/contract/test_storage.py",),
    ),
    Fault(
        "a listing that breaks off in the middle passes for complete",
        "storage/s3_objects.py",
        'if _goes_on(page) and not (page.get("IsTruncated") and page.get("NextContinuationToken")):',
        "if page is None:",
        ("tests/unit/test_foreign_answers.py",),
    ),
    Fault(
        "any 404 proves that a table is gone",
        "catalogs/rest.py",
        "return error is not None and error.code == 404",
        "return True",
        ("tests/contract/test_rest_catalog.py", "tests/hostile/test_rest_answers.py"),
    ),
    Fault(
        "verify takes files for missing that an expiry has deleted meanwhile",
        "runtime.py",
        "\n        if not found.ok and (now := self.catalog.load(table)).metadata_location != loaded",
        "\n        if not found.ok and (now := self.catalog.load(table)).metadata_location == loaded",
        ("tests/integration/test_verify.py",),
    ),
    Fault(
        "a pass that read a file forgets what verify found about it",
        "state/table_memory.py",
        "file.kind == UNREADABLE and file.path in read",
        "file.path in read",
        ("tests/contract/test_state_records.py",),
    ),
)

# What lands, and what a lost answer means.
_COMMITS = (
    Fault(
        "a commit on a branch repeats a sequence number of another branch",
        "commit/snapshot.py",
        "self.metadata.last_sequence_number + 1",
        "self.head.sequence_number + 1",
        ("tests/unit/test_snapshot_writer.py", "tests/unit/test_commit.py", "tests/interop/test_commit_rules.py"),
    ),
    Fault(
        "rewritten files get the sequence number of the commit",
        "commit/snapshot.py",
        "replacement.own_sequence_numbers.get(file.key, replacement.data_sequence_number)",
        "replacement.own_sequence_numbers.get(file.key)",
        ("tests/unit/test_snapshot_writer.py", "tests/unit/test_commit.py", "tests/interop/test_commit_rules.py"),
    ),
    Fault(
        "two manifests share row ids",
        "commit/attempt.py",
        "next_row_id += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)",
        "next_row_id += manifest.added_rows_count or 0",
        ("tests/unit/test_snapshot_writer.py",),
    ),
    Fault(
        "a repair does another plan on a newer head than was shown",
        "repair/repair.py",
        "            _require_same(again, plan.after_copies.digest)\n",
        "",
        ("tests/integration/test_repair.py",),
    ),
    Fault(
        "a file that the store cannot read counts as gone",
        "repair/lost_files.py",
        "return storage.shows_missing(path, error)",
        "return True",
        ("tests/integration/test_repair.py",),
    ),
    Fault(
        "a corrected count reaches into row ids that are yet to be given",
        "repair/file_metrics.py",
        "if end <= next_row_id and not any(",
        "if not any(",
        ("tests/property/test_repair.py",),
    ),
    Fault(
        "a gateway's error counts as the catalog's refusal",
        "catalogs/commit_answer.py",
        "return CommitAnswer.REFUSED if 400 <= status < 500 and status != 408",
        "return CommitAnswer.REFUSED if 400 <= status",
        ("tests/unit/test_catalogs.py", "tests/unit/test_foreign_answers.py", "tests/contract/test_rest_catalog.py"),
    ),
    Fault(
        "files of a commit of unknown outcome are removed",
        "commit/transaction.py",
        "        if isinstance(outcome, CommitStateUnknown):\n            raise outcome\n"
        "        terms.discard([*prepared.staged, *left])\n",
        "        terms.discard([*prepared.staged, *left])\n        if isinstance(outcome, CommitStateUnknown):\n"
        "            raise outcome\n",
        ("tests/unit/test_commit.py",),
    ),
    Fault(
        "a SQL catalog's swap ignores another writer's commit",
        "catalogs/sql.py",
        '    f"WHERE {_NAMED} AND metadata_location = :old"\n',
        '    f"WHERE {_NAMED}"\n',
        ("tests/contract/test_catalogs.py",),
    ),
    Fault(
        "a file that was removed and added again is replaced",
        "commit/conflict_detection.py",
        "if any(key in inputs.changed for key in group.inputs):",
        "if inputs.changed is None:",
        ("tests/unit/test_conflict_detection.py",),
    ),
    Fault(
        "a delete goes although a foreign commit added old data that it may reach",
        "commit/conflict_detection.py",
        "if any(m.min_sequence_number <= planned.sequence_number for m in foreign):",
        "if any(m.min_sequence_number < 0 for m in foreign):",
        ("tests/unit/test_conflict_detection.py",),
    ),
)

# Which rows a delete removes, and whether the outputs hold all others.
_ROWS = (
    Fault(
        "an equality delete reaches rows of its own commit",
        "metadata/delete_scope.py",
        "            if _sequence_number(entry) > sequence_number:\n",
        "            if _sequence_number(entry) >= sequence_number:\n",
        ("tests/unit/test_delete_scope.py", "tests/integration/test_apply_deletes.py"),
    ),
    Fault(
        "a position delete misses rows of its own commit",
        "metadata/delete_scope.py",
        "        for entry in self.positions_by_path.get(path, ()):\n"
        "            if _sequence_number(entry) >= sequence_number:\n",
        "        for entry in self.positions_by_path.get(path, ()):\n"
        "            if _sequence_number(entry) > sequence_number:\n",
        ("tests/unit/test_delete_scope.py", "tests/integration/test_apply_deletes.py"),
    ),
    Fault(
        "deletes of the last input are not forwarded",
        "operations/compaction/land/forward_deletes.py",
        "        for candidate in self._files(group_id):\n            path = candidate.file_path\n",
        "        for candidate in self._files(group_id)[:-1]:\n            path = candidate.file_path\n",
        ("tests/integration/test_forwarded_deletes.py", "tests/interop/test_forwarded_deletes.py"),
    ),
    Fault(
        "a truncated file of position deletes is believed",
        "rows/apply_deletes.py",
        "            require_whole(delete, count)\n",
        "",
        ("tests/integration/test_damaged_inputs.py", "tests/integration/test_apply_deletes.py"),
    ),
    Fault(
        "checksums of rows are not compared",
        "operations/compaction/work/proof.py",
        "if None not in (self.checksum, written.checksum) and self.checksum != written.checksum:",
        "if None in (self.rows, written.rows):",
        ("tests/property/test_row_proof.py",),
    ),
    Fault(
        "bytes of copied row groups are not compared",
        "row_group_copy/copy_proof.py",
        "if before.checksums != tuple(read[piece] for piece in after.pieces):",
        "if number < 0:",
        ("tests/unit/test_copy_proof.py",),
    ),
    Fault(
        "copied row groups inherit the row ids of the first one",
        "row_group_copy/lineage.py",
        "inherited.after(copied.first_row)",
        "inherited.after(0)",
        ("tests/unit/test_copied_lineage.py", "tests/interop/test_row_lineage.py"),
    ),
    Fault(
        "a truncated upper bound is not rounded up",
        "metadata/types.py",
        "            code_point = ord(text[end]) + 1\n",
        "            code_point = ord(text[end])\n",
        ("tests/unit/test_types.py", "tests/property/test_where.py"),
    ),
    Fault(
        "rows from before 1970 get the year of the following one",
        "operations/compaction/terms/output_partition.py",
        "return lambda raw: _months(kind, raw) // divisor",
        "return lambda raw: int(_months(kind, raw) / divisor)",
        ("tests/property/test_output_partition.py",),
    ),
)
# What a deep verify finds, and how deletes are mended.
_DAMAGE = (
    Fault(
        "a bound that excludes a value passes a deep verify",
        "verification/row_checks.py",
        "if bound > column.low if is_lower else bound < column.high:",
        "if bound > column.high if is_lower else bound < column.low:",
        ("tests/property/test_row_checks.py",),
    ),
    Fault(
        "row ids of deleted rows count as shared",
        "verification/read_files.py",
        "            ids = ids.filter(live)\n",
        "            pass\n",
        ("tests/integration/test_verify_deep.py",),
    ),
    Fault(
        "a united vector deletes only what the first one deletes",
        "repair/deletes.py",
        "reduce(or_, found)",
        "found[0]",
        ("tests/integration/test_repair_deletes.py",),
    ),
    Fault(
        "a vector of another data file is taken for a lost one",
        "repair/deletes.py",
        'if properties.get("referenced-data-file") != file.referenced_data_file:',
        "if not properties:",
        ("tests/integration/test_repair_deletes.py",),
    ),
)

# What may be mended or set back.
_MENDS = (
    Fault(
        "a rollback does not look at the files of its target",
        "repair/rollback.py",
        '        raise OperationRefused(\n            f"snapshot {plan.target.snapshot_id} is damaged',
        '        str(\n            f"snapshot {plan.target.snapshot_id} is damaged',
        ("tests/integration/test_rollback.py",),
    ),
    Fault(
        "a rollback undoes a commit that landed after it was planned",
        "repair/rollback.py",
        "ref.snapshot_id != plan.head.snapshot_id",
        "ref.snapshot_id < 0",
        ("tests/property/test_rollback.py", "tests/integration/test_rollback.py"),
    ),
    Fault(
        "a manifest list is proven although files that its summary counts are unknown",
        "repair/lists.py",
        "    if why := _why_incomplete(snapshot, own):\n",
        "    if (why := _why_incomplete(snapshot, own)) and not own:\n",
        ("tests/property/test_rebuilt_lists.py",),
    ),
    Fault(
        "the manifests that a child rewrote are taken for those of its parent",
        "repair/lists.py",
        "        entry.status is not EntryStatus.ADDED or entry.snapshot_id != child.snapshot_id for entry in entries",
        "        entry.snapshot_id is None for entry in entries",
        ("tests/property/test_rebuilt_lists.py",),
    ),
    Fault(
        "the pointer moves although another state is as new",
        "repair/newer_metadata.py",
        "    if rivals:\n        rival",
        "    if len(rivals) > 9:\n        rival",
        ("tests/integration/test_lost_metadata.py",),
    ),
    Fault(
        "a sweep deletes metadata that a rollback copied aside",
        "operations/orphans/orphan_rules.py",
        "        if not is_aside(found.path, metadata) or",
        "        if found.path or",
        ("tests/unit/test_orphan_plan.py",),
    ),
)

# What counts as proof that rows are gone.
_ERASED = (
    Fault(
        "what cannot be read counts as gone",
        "erasure/places.py",
        '"unknown" if unknown else "gone"',
        '"gone"',
        ("tests/integration/test_erased.py",),
    ),
    Fault(
        "the head is not read again after the objects",
        "erasure/prove.py",
        "if (not has_moved and not vanished) or number == _MOST_ROUNDS - 1:",
        "if number >= 0:",
        ("tests/integration/test_erased.py",),
    ),
    Fault(
        "a column that a delete file lacks is null",
        "erasure/row_filter.py",
        "        if len(known) < len(self.columns):\n",
        "        if False:\n",
        ("tests/property/test_erased_rows.py",),
    ),
    Fault(
        "removed files leave no trace in manifests",
        "erasure/prove.py",
        "if trace is Trace.CERTAIN or text_trace(",
        "if text_trace(",
        ("tests/integration/test_erased.py",),
    ),
)

FAULTS = (*_EXPIRY, *_DELETION, *_COMMITS, *_ROWS, *_MENDS, *_DAMAGE, *_ERASED)
