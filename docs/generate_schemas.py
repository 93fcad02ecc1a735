"""Write docs/schemas/: the JSON Schema of every document of ``--json``, from the fields below.

Tests check each document that a command prints in a test against its schema.  A schema allows no other fields.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).resolve().parent / "schemas"

Schema: TypeAlias = dict[str, Any]
_OPTIONAL = "optional"


def text(what: str = "") -> Schema:
    """A string."""
    return _described({"type": "string"}, what)


def whole(what: str = "") -> Schema:
    """A whole number."""
    return _described({"type": "integer"}, what)


def number(what: str = "") -> Schema:
    """Any number."""
    return _described({"type": "number"}, what)


def flag(what: str = "") -> Schema:
    """True or false."""
    return _described({"type": "boolean"}, what)


def one_of(what: str, *values: str) -> Schema:
    """One of these texts."""
    return _described({"enum": [*values]}, what)


def or_null(schema: Schema) -> Schema:
    """The value, or null."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def each(what: str, schema: Schema) -> Schema:
    """A list."""
    return _described({"type": "array", "items": schema}, what)


def by_key(what: str, schema: Schema) -> Schema:
    """An object whose keys are not fixed."""
    return _described({"type": "object", "additionalProperties": schema}, what)


def fields(what: str, /, **properties: Schema) -> Schema:
    """An object with these fields and no others; those within :func:`optional` may be missing."""
    shown = {name: {k: v for k, v in schema.items() if k != _OPTIONAL} for name, schema in properties.items()}
    required = [name for name, schema in properties.items() if _OPTIONAL not in schema]
    return _described(
        {"type": "object", "properties": shown, "required": required, "additionalProperties": False}, what
    )


def optional(schema: Schema) -> Schema:
    """A field that a document need not have."""
    return {**schema, _OPTIONAL: True}


def objects(what: str, /, **properties: Schema) -> Schema:
    """A list of objects with these fields."""
    return each(what, fields("", **properties))


def _described(schema: Schema, what: str) -> Schema:
    return {"description": what, **schema} if what else schema


def snapshot_id(what: str) -> dict[str, Schema]:
    """An id, beside its text for readers that round numbers above 2^53."""
    return {
        "snapshot_id": or_null(whole(what)),
        "snapshot_id_text": or_null(text("`snapshot_id` as text: many readers round numbers above 2^53")),
    }


ANY: Schema = {}
STATUS = one_of("how it ended", "succeeded", "skipped", "refused", "partial", "failed")
PROBLEM = fields(
    "", kind=text("a name of docs/recovery.md"), path=text("the file"), detail=text("what is wrong with it")
)
TABLE = {"table": text("NAMESPACE.TABLE"), "catalog": text("name of the catalog in PyIceberg's configuration")}
ABOUT = {**TABLE, "status": STATUS}
METRICS = by_key("amounts by name, such as `compact.files_merged`; docs/operations has them all", number())
SETTINGS = by_key("settings of the call, by policy key", text())
ERROR = fields(
    "why the command failed or was interrupted",
    type=text("a name of docs/errors, `UsageError` or `Interrupted`"),
    message=text("one sentence that says what to do"),
    docs=optional(text("page of `icekeeper docs` that says more")),
)
SOURCED = fields("", source=text("where the value comes from"), value={"description": "in its JSON type"})
POLICY = by_key("every setting in force, by policy key", SOURCED)
ACHIEVED = {
    "files_before": number("files that it replaced"),
    "files_after": number("files that it wrote instead"),
    "requests_saved": number("requests that a full scan needs no more"),
    "cost_usd": number("what its rewrites cost by the prices of `plan`, an estimate in US dollars"),
}
PASS = fields(
    "one pass",
    run_id=text("id of the pass or run"),
    started_ms=whole("start, in epoch milliseconds"),
    finished_ms=whole("end, in epoch milliseconds"),
    duration_ms=whole("milliseconds from start to end"),
    status=STATUS,
    summary=text("`OPERATION: SENTENCE` of every operation"),
    engine=or_null(text("`local`, `spark` or both")),
    metrics=METRICS,
    **TABLE,
    bytes_freed=number("bytes of the files that it deleted"),
    **ACHIEVED,
)
REPAIR = fields(
    "What a repair of a table did, or would do",
    **ABOUT,
    run_id=text("id of the repair, as in the journal"),
    dry_run=flag("whether nothing was changed"),
    summary=text("one sentence"),
    operation=or_null(one_of("operation of the snapshot", "replace", "delete", "overwrite")),
    repaired_manifests=whole("manifests that are written anew"),
    repaired_entry_count=whole("entries that are mended"),
    mends=objects(
        "what is mended",
        kind=text("a kind of mend of docs/recovery.md"),
        path=text("the file"),
        detail=text("what is wrong, and what is done"),
        rows_lost=whole("rows that are gone for good"),
        rows_back=or_null(whole("rows that reappear; null: it is unknown how many")),
    ),
    unmended=objects(
        "what stays as it is",
        kind=text("a kind of mend or problem of docs/recovery.md"),
        path=text("the file"),
        detail=text("what is wrong, and why it is left"),
        option=or_null(text("the option of `repair`, or the command, that helps; null: none does")),
    ),
    retained=objects(
        "other snapshots with the same damage",
        **snapshot_id("the snapshot"),
        state=one_of("whether it can be read or is mended, too", "mended", "unmended"),
    ),
    **snapshot_id("the snapshot that was committed"),
    tag=or_null(text("the tag that keeps the old head for 30 days")),
    no_tag=or_null(text("why no tag keeps it")),
)
FILES = fields(
    "files that the operation rewrites or deletes; a long list is in a file of its own",
    planned=optional(each("paths that it reads and replaces, or would delete", text())),
    deleted=optional(each("paths that it deleted", text())),
    listing=optional(text("file with both lists, where there are more than 1,000 paths")),
    planned_count=optional(whole("length of the list `planned` in that file")),
    deleted_count=optional(whole("length of the list `deleted` in that file")),
)
CHANGE = {
    "files": whole("data files in"),
    "outputs": whole("data files out"),
    "bytes_in": whole("bytes read"),
    "bytes_out": whole("bytes written, by an estimate"),
    "delete_files": whole("delete files that are applied"),
    "requests": whole("requests to the store"),
    "saving_usd": number("what readers save in `expected_scans` scans, in US dollars"),
    "cost_usd": number("what the rewrite costs, in US dollars"),
}
PLAN = fields(
    "what a dry run would do",
    groups=optional(
        objects(
            "file groups, the first to be rewritten first",
            reasons=each("why its files are rewritten", text()),
            partition=text("partition path; empty: not partitioned"),
            spec_id=whole("partition spec of the outputs"),
            **CHANGE,
        )
    ),
    totals=optional(fields("sums of all groups", groups=whole("number of groups"), **CHANGE)),
    left=optional(
        objects("files that are left alone", reason=text("why"), files=whole("how many"), bytes=whole("their size"))
    ),
    assumes=optional(
        fields(
            "assumptions behind costs and savings",
            expected_scans=or_null(whole("scans that a merge must pay for itself in")),
        )
    ),
    settings=optional(
        objects(
            "settings of the table that files lack, from a sample of footers",
            reason=text("codec, bloom or sort_order"),
            how=text("the setting that would rewrite the files"),
            lacking=whole("files of the sample that lack it"),
            sampled=whole("files looked at"),
            bytes=whole("bytes that a rewrite would read, by an estimate"),
            cost_usd=number("what it would cost, in US dollars"),
        )
    ),
    like_missing=optional(each("unreferenced files that resemble missing ones, which stay", ANY)),
)


def operation(in_turn: bool = True) -> Schema:
    """One operation of a pass."""
    return fields(
        "one operation",
        operation=text("name, such as `compact`"),
        status=STATUS,
        reason=or_null(text("why it was skipped or refused, or failed")),
        summary=text("one sentence"),
        **snapshot_id("the last snapshot that it committed"),
        snapshot_ids=each("all snapshots that it committed, oldest first", whole()),
        snapshot_ids_text=each("`snapshot_ids` as texts", text()),
        metrics=METRICS,
        files=FILES,
        plan=optional(PLAN),
        lost_lease=optional(flag("another run took the lease; nothing was committed")),
        planned_after=optional(each("operations whose result the plan of a dry run includes", text())),
        **({"in_turn": optional(operation(in_turn=False))} if in_turn else {}),
    )


MAINTAIN = {
    **TABLE,
    "run_id": text("id of the pass"),
    "dry_run": flag("whether nothing was changed"),
    "status": STATUS,
    "operations": each("in the order in which they ran", operation()),
    "summary": text("`OPERATION: SENTENCE` of every operation"),
    "metrics": METRICS,
}
PLANNED_ANEW = by_key("of a dry run: operations that a pass plans on the result of earlier ones", each("", text()))
MAINTAIN_MORE = {
    "staged": optional(
        fields(
            "the files of failed loads",
            summary=text("one sentence"),
            problem=or_null(text("why files could not be deleted; the next pass tries again")),
            metrics=METRICS,
            files=FILES,
        )
    ),
    "engine": optional(
        fields(
            "where files were rewritten",
            name=text("`local`, `spark` or both"),
            reason=or_null(text("why; null: it was named")),
        )
    ),
    "planned_anew": optional(PLANNED_ANEW),
    "warnings": optional(each("problems outside the operations", text())),
    "error": optional(ERROR),
}
FAILED_TABLE = fields("a table that ended with an error", **ABOUT, error=ERROR)
EACH_PASS = {"anyOf": [fields("a pass", **MAINTAIN, **MAINTAIN_MORE), FAILED_TABLE]}
SEVERAL = fields(
    "Passes over several tables, or dry runs of them",
    catalog=TABLE["catalog"],
    status=STATUS,
    tables=each("in the order of their names", EACH_PASS),
)


def one_or_several(what: str, /, **properties: Schema) -> Schema:
    """The document about a table, or those of several tables."""
    one = {"$ref": "#/$defs/one"}
    each_of_them = each("in the order of their names", {"anyOf": [one, FAILED_TABLE]})
    several = fields("several tables", catalog=TABLE["catalog"], status=STATUS, tables=each_of_them)
    return {"description": what, "anyOf": [one, several], "$defs": {"one": fields("a table", **properties)}}


COSTS = fields(
    "what each branch, tag and snapshot alone holds",
    refs=objects(
        "branches and tags",
        name=text("of the ref"),
        type=one_of("kind of ref", "branch", "tag"),
        **snapshot_id("its snapshot"),
        snapshots=whole("snapshots that only it reaches"),
        files_only_here=whole("files that only it references"),
        bytes_only_here=whole("their size"),
    ),
    snapshots=objects(
        "snapshots, oldest first",
        **snapshot_id("its id"),
        timestamp_ms=whole("its commit, in epoch milliseconds"),
        refs=each("branches and tags that reach it, by name, at most 20", text()),
        files_only_here=whole("files that only it references"),
        bytes_only_here=whole("their size"),
    ),
    bytes_without_ref=whole("size of files that no branch or tag reaches"),
    files=whole("files of all snapshots"),
    bytes=whole("their size"),
)
BOUNDS = fields(
    "what no deletion may touch now",
    now_ms=whole("the time that counts, of the store, in epoch milliseconds"),
    metadata_location=text("metadata file that was read"),
    gc_enabled=flag("the table's property `gc.enabled`"),
    oldest_pinned_snapshot_id=or_null(whole("this snapshot and all newer ones stay")),
    pinned_metadata=each("metadata files that pins keep", text()),
    staged=fields(
        "files of recorded loads",
        prefixes=optional(each("folders", text())),
        files=optional(each("paths", text())),
        listing=optional(text("file with the paths, where there are many")),
        files_count=optional(whole("number of paths in that file")),
    ),
    protected_prefixes=each("folders whose files are never orphans", text()),
    allowed_prefixes=each("folders outside of which nothing is touched", text()),
    orphans_modified_before_ms=whole("younger files are no orphans"),
    snapshots_committed_before_ms=whole("younger snapshots stay"),
    snapshots_kept=whole("this many newest snapshots stay"),
)
PLAN_OF_ONE = fields(
    "What a pass would do and free",
    **MAINTAIN,
    planned_anew=PLANNED_ANEW,
    reclaimable_bytes=whole("bytes that expiry and orphan removal would free"),
    costs=COSTS,
    bounds=BOUNDS,
    **{name: schema for name, schema in MAINTAIN_MORE.items() if name != "planned_anew"},
)
MOVED = fields(
    "a snapshot",
    **snapshot_id("its id"),
    time=text("ISO 8601, UTC"),
    operation=or_null(text("append, overwrite, delete or replace")),
    **{
        f"{what}_rows": or_null(whole("rows of data files, by its summary; null: the summary does not say"))
        for what in ("added", "deleted", "total")
    },
)
PIN = fields(
    "a pin",
    name=text("unique in the table"),
    **snapshot_id("this snapshot and all newer ones stay"),
    metadata_location=text("metadata file that it keeps"),
    expires_ms=whole("its end, in epoch milliseconds"),
    expires=text("its end, in UTC"),
    kind=text("who made it: `reader`, `rewrite`, `lost-ref` …"),
    tag=or_null(text("the tag that it wrote")),
)
LOAD = fields(
    "a staged load",
    name=text("unique in the table"),
    origin=text("who recorded it"),
    state=text("staged, adopted or failed"),
    files=whole("number of its files"),
    prefixes=each("its folders", text()),
    changed_ms=whole("last change, in epoch milliseconds"),
    changed=text("last change, in UTC"),
)
CLAIM = fields(
    "another table, and where it was seen to have files",
    catalog=text("its catalog"),
    warehouse=text("the catalog's warehouse"),
    table=text("its name"),
    uuid=text("its table UUID"),
    location=text("its location"),
    folders=each("folders with files of it", text()),
)
REQUEST = fields(
    "a request for a pass",
    **TABLE,
    requested_ms=whole("when, in epoch milliseconds"),
    requested=text("when, in UTC"),
    settings=SETTINGS,
)
ADVICE = fields(
    "something that no pass can change",
    table=text("NAMESPACE.TABLE"),
    kind=text("docs/advice.md has them all"),
    severity=text("info"),
    reason=text("what was found"),
    numbers=by_key("what the reason counts", number()),
    gain=text("what the change would bring"),
    statement=text("the command or SQL statement to run"),
)
CHANGED = objects(
    "settings that changed",
    key=text("policy key"),
    before={"description": "the value before", "anyOf": [SOURCED, {"type": "null"}]},
    after={"description": "the value after", "anyOf": [SOURCED, {"type": "null"}]},
)
_CHECKSUM = fields("of its current snapshot", rows=whole("how many"), checksum=text("of all rows, by DuckDB"))
CONTENTS = fields(
    "rows of the table", head=_CHECKSUM, tagged={"description": "at its tag", "anyOf": [_CHECKSUM, {"type": "null"}]}
)
REPORTED = {"table": text("NAMESPACE.TABLE"), "reason": text("why"), "warning": text("what else is wrong")}
DOCUMENTS: dict[str, Schema] = {
    "error": fields("A call that failed before it had a result", error=ERROR),
    "detect": fields(
        "Tables that need work",
        catalog=TABLE["catalog"],
        scanned=whole("tables that were looked at"),
        proposals=objects(
            "most urgent first",
            table=REPORTED["table"],
            reasons=each("why it needs work", text()),
            priority=number("0 to 1; it grows with each reason, and runs begin with the highest"),
            warning=optional(REPORTED["warning"]),
            requested=optional(flag("a person asked for a pass")),
            settings=optional(SETTINGS),
        ),
        skipped=objects(
            "tables that are left alone",
            table=REPORTED["table"],
            reason=REPORTED["reason"],
            warning=optional(REPORTED["warning"]),
            error=optional(flag("it could not be read")),
        ),
        status=STATUS,
        next_run=optional(
            fields(
                "how a scheduled run would begin now; not where the call names tables",
                begins=each("tables that it would begin with", text()),
                waits=each("tables beyond `max_concurrent_jobs`", text()),
                at_work=whole("tables that scheduled runs maintain already"),
                limits=by_key("limits, by policy key", SOURCED),
                filters=by_key("filters, by policy key", SOURCED),
            )
        ),
        beyond_limit=optional(whole("tables beyond `max_jobs_per_detection`")),
        note=optional(text("what holds for the whole scan")),
    ),
    "list": fields(
        "Tables as scans and passes recorded them",
        status=STATUS,
        blockers=each("which tables cannot be read, so that the deletions of others wait", text()),
        tables=objects(
            "most urgent first",
            catalog=TABLE["catalog"],
            name=text("NAMESPACE.TABLE"),
            state=one_of("docs/report.md explains it", "unreadable", "damaged", "trouble", "work", "paused", "well"),
            waits=flag("whether its deletions wait for another table that cannot be read"),
            verified_ms=whole("when verify last looked at it, in epoch milliseconds; 0: never"),
            priority=number("0 to 1; it grows with each reason, and runs begin with the highest"),
            observed_ms=whole("since when the shown values hold, in epoch milliseconds"),
            age_seconds=whole("for how long the shown values hold"),
            counters=by_key("amounts by name; docs/detection.md has them all", number()),
            trouble=optional(text("why a person must look at it")),
            reasons=optional(each("why it needs work", text())),
            left_alone=optional(text("why it needs none")),
        ),
    ),
    "show": fields(
        "The metadata of a table",
        **ABOUT,
        uuid=or_null(text("the table's UUID")),
        location=text("where its files are"),
        format_version=whole("version of the Iceberg format"),
        updated_ms=whole("its last change, in epoch milliseconds"),
        properties=by_key("table properties", text()),
        schema={"description": "the current schema, as the metadata has it", "type": "object"},
        partition_specs=each("as the metadata has them", ANY),
        default_spec_id=whole("the current partition spec"),
        sort_orders=each("as the metadata has them", ANY),
        default_sort_order_id=whole("the current sort order"),
        refs=objects(
            "branches and tags",
            name=text("of the ref"),
            type=one_of("kind of ref", "branch", "tag"),
            **snapshot_id("its snapshot"),
        ),
        snapshots=objects(
            "newest first",
            **snapshot_id("its id"),
            timestamp_ms=whole("its commit, in epoch milliseconds"),
            operation=or_null(text("append, overwrite, replace or delete")),
            summary=by_key("as its writer left it", text()),
        ),
    ),
    "health": one_or_several(
        "How a table looks",
        **ABOUT,
        **snapshot_id("the snapshot that was looked at"),
        observed_ms=whole("when, in epoch milliseconds"),
        counters=by_key("amounts by name; docs/detection.md has them all", number()),
        warnings=objects("what is wrong", kind=text("a name of docs/detection.md"), message=text("a sentence")),
        policy=by_key("settings that are set, by policy key", SOURCED),
        verified_ms=whole("when verify last looked at it, in epoch milliseconds; 0: never"),
    ),
    "maintain": {"anyOf": [fields("A pass, or a dry run of one", **MAINTAIN, **MAINTAIN_MORE), SEVERAL]},
    "plan": {"anyOf": [PLAN_OF_ONE, SEVERAL]},
    "apply": fields(
        "What was done of a saved plan",
        status=STATUS,
        saved=text("when the plan was saved, in UTC"),
        tables=each("one for each table of the plan", EACH_PASS),
        repairs=optional(each("repairs of the plan, as `repair` prints them, or with an `error`", ANY)),
    ),
    "verify": one_or_several(
        "Whether a table is sound",
        **ABOUT,
        ok=flag("whether nothing is wrong"),
        problems=each("what is wrong", PROBLEM),
        checked=by_key("how many snapshots, manifests and files were looked at, and files and rows read", whole()),
        superseded=whole("problems of snapshots from before a repair or rollback alone; not in `problems`"),
        remedies=optional(by_key("what to do, by kind of problem", text())),
        unread=optional(by_key("why the store did not let a file be read, by path", text())),
    ),
    "repair": REPAIR,
    "erased": fields(
        "The certificate of erased: what was looked at, and what still stores matching rows",
        **ABOUT,
        answer=one_of("what was found", "gone", "present", "unknown"),
        statement=text("the answer as a sentence"),
        not_covered=each("what the answer says nothing about", text()),
        at=text("the time of the listing, in UTC"),
        uuid=or_null(text("the table's UUID")),
        metadata_location=text("the table's metadata file"),
        moved=whole("how often the table moved while it was read"),
        filter=fields(
            "what must be gone",
            where=optional(text("the filter")),
            column=optional(text("the column of the keys")),
            keys=optional(whole("how many keys")),
            sha256=optional(text("the digest of the file of keys")),
        ),
        versions=by_key("versions of icekeeper and pyarrow", text()),
        rows_read=whole("rows and keys that were read"),
        rows_excluded=whole("rows in row groups that the footers of their files exclude"),
        places=objects(
            "what stores matching rows, or values of them",
            holder=text("why the objects are still there"),
            name=text("the name of the ref, load or list; empty: it has none"),
            what=text("what they store"),
            rows=whole("matching rows or keys; 0: a value in metadata"),
            objects=each("their paths", text()),
            snapshot_ids=each("the snapshots that need them", whole()),
            snapshot_ids_text=each("the same as text", text()),
            gone_on=or_null(text("the day from which a pass by the policy removes them")),
        ),
        sooner=each("the commands that remove all of them sooner, in order", text()),
        unknown=objects("objects that could not be read", path=text("the object"), reason=text("why, as a sentence")),
        objects=objects(
            "every object that was looked at",
            path=text("the object"),
            size=whole("bytes"),
            etag=text("its ETag, or the SHA-256 of a local file"),
            version=optional(text("the id of an older version")),
        ),
    ),
    "history": fields(
        "Past passes of a table, or of several or all tables",
        status=STATUS,
        catalog=or_null(TABLE["catalog"]),
        passes=each("newest first", PASS),
        totals=fields(
            "sums of the passes",
            passes=whole("how many"),
            failed=whole("those that did not succeed"),
            bytes_freed=number("bytes of the files that they deleted"),
            **ACHIEVED,
        ),
        table=optional(TABLE["table"]),
        since_ms=optional(whole("of all tables: passes that ended since, in epoch milliseconds")),
    ),
    "advise": fields(
        "What to change about one table or all tables of a catalog",
        status=STATUS,
        advice=each("what to change", ADVICE),
        table=optional(TABLE["table"]),
        catalog=optional(TABLE["catalog"]),
        tables=optional(
            objects(
                "of a catalog",
                table=REPORTED["table"],
                status=STATUS,
                advice=each("what to change", ADVICE),
                reason=optional(REPORTED["reason"]),
            )
        ),
    ),
    "doctor": fields(
        "What every command relies on",
        status=STATUS,
        checks=objects(
            "in the order in which they were made",
            check=text("versions, settings, state, engine, catalog, credentials, store, clock or write"),
            status=STATUS,
            detail=text("what was found, or what failed and what to do"),
            catalog=text("the catalog; empty: of this machine"),
        ),
    ),
    "policy-init": fields("A file for settings that was written", status=STATUS, file=text("its path")),
    "policy-check": fields(
        "A file of settings, and the tables that its rules match",
        status=STATUS,
        file=text("its path or address"),
        catalogs=each("the catalogs whose tables were matched", text()),
        rules=objects(
            "in the order of the file; later rules win",
            rule=whole("number in the file, from 1"),
            patterns=by_key("patterns by field; without a field, every table", each("", text())),
            settings=by_key("values by policy key, as the file has them", text()),
            tables=objects("the tables that match all patterns", **TABLE),
        ),
    ),
    "policy-show": one_or_several(
        "The settings of a table", **ABOUT, policy=POLICY, ignored=each("table properties that do not count", ANY)
    ),
    **{
        f"policy-{verb}": one_or_several(what, **ABOUT, changes=CHANGED, policy=POLICY)
        for verb, what in (("set", "Kept settings"), ("unset", "Removed settings"), ("reset", "Removed settings"))
    },
    "pause": one_or_several("A pause", **ABOUT, paused_until=text("ISO 8601, UTC")),
    "resume": one_or_several(
        "The end of a pause", **ABOUT, was_paused_until=or_null(text("ISO 8601, UTC; null: there was no pause"))
    ),
    "rollback": fields(
        "A branch that is set back to a snapshot",
        **ABOUT,
        dry_run=flag("whether nothing was changed"),
        outcome=one_of("nothing: the branch is at that snapshot already", "nothing", "planned", "done"),
        summary=text("in a sentence"),
        branch=optional(text("its name")),
        from_snapshot=optional(MOVED),
        to_snapshot=optional(MOVED),
        leaving=optional(each("the snapshots that the branch loses, newest first", MOVED)),
        returning=optional(each("the snapshots that the branch gains, newest first", MOVED)),
        problems=optional(each("what is wrong with the snapshot, none of which keeps it from being read", PROBLEM)),
        tag=optional(or_null(text("the tag that keeps the old head for 30 days"))),
        no_tag=optional(or_null(text("why no tag keeps the old head"))),
        aside=optional(or_null(text("the folder with copies of an old head's metadata that cannot all be read"))),
    ),
    "pin-add": fields(
        "A pin that was added", **ABOUT, pin=PIN, warnings=optional(each("why its snapshot may expire earlier", text()))
    ),
    "pin-list": fields("The pins that hold", **ABOUT, pins=each("one for each pin", PIN)),
    "pin-remove": fields("A pin that was removed", **ABOUT, removed=text("its name")),
    **{f"stage-{verb}": fields("A staged load", **ABOUT, load=LOAD) for verb in ("add", "adopted", "failed")},
    "stage-list": fields("The recorded loads", **ABOUT, loads=each("one for each load", LOAD)),
    "orphans": fields(
        "The orphans of a bucket",
        catalog=TABLE["catalog"],
        bucket=text("address that was listed"),
        run_id=text("id of the sweep"),
        dry_run=flag("whether nothing was deleted"),
        status=STATUS,
        tables=objects(
            "tables below the address",
            table=REPORTED["table"],
            status=STATUS,
            reason=or_null(text("why it was skipped or refused, or failed")),
            summary=text("one sentence"),
            orphans_removed=whole("files deleted"),
            bytes=whole("size of its orphans"),
            files=FILES,
        ),
        outside=fields(
            "files outside of all tables, which stay",
            files=whole("how many"),
            bytes=whole("their size"),
            first=each("some of their paths", text()),
        ),
        foreign=each("folders of tables that the catalog does not have", ANY),
        metrics=METRICS,
        warnings=optional(each("what else is wrong", text())),
    ),
    "claims-list": fields(
        "The other tables that may need files near a table", **ABOUT, claims=each("one for each table", CLAIM)
    ),
    "claims-exclude": fields(
        "A table that stops no deletion any more", **ABOUT, excluded=each("one for each table", CLAIM)
    ),
    "claims-forget": fields("Tables that are forgotten", **ABOUT, forgotten=each("one for each table", CLAIM)),
    "request-add": fields(
        "A request for a pass, and its result",
        **TABLE,
        status=text("requested, running, or how the pass ended"),
        summary=text("one sentence"),
        requested_ms=whole("when, in epoch milliseconds"),
        settings=SETTINGS,
        execution=or_null(text("ARN of the state machine's execution")),
        **{"pass": {"anyOf": [PASS, {"type": "null"}]}},
    ),
    "request-list": fields(
        "Requests that no run has taken",
        catalog=or_null(TABLE["catalog"]),
        status=STATUS,
        scheduled=flag("whether runs look for requests here"),
        requests=each("oldest first", REQUEST),
    ),
    "request-withdraw": fields("A request that was taken back", **ABOUT, withdrawn=REQUEST),
    "demo": fields(
        "The demonstration",
        ok=flag("whether every table is healthy and no row changed"),
        seconds=number("how long it took"),
        tables=objects(
            "its tables",
            table=REPORTED["table"],
            mess=text("how it was left"),
            status=or_null(STATUS),
            same_rows=flag("whether all rows are as before"),
            before=by_key("its files before", whole()),
            after=by_key("its files after", whole()),
            rows_before=CONTENTS,
            rows_after=CONTENTS,
        ),
        catalog=TABLE["catalog"],
        status=STATUS,
    ),
    "docs": fields(
        "Pages of the documentation",
        status=STATUS,
        topics=optional(by_key("title by topic", text())),
        topic=optional(text("the page")),
        text=optional(text("its Markdown")),
    ),
}


def main() -> None:
    """Write every schema, and remove others."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name, schema in DOCUMENTS.items():
        document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{name} --json", **schema}
        (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
