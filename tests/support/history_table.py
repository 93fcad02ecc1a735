"""A table that Iceberg-Java makes, and the oracle's model of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.histories import History
from support.java_writer import JavaTable, JavaTables
from support.oracle import ModelFile, Row, TableModel
from support.values import fits, random_value

# Manifests stay as they are written, so that deletes and data of many sequence numbers meet.
_PROPERTIES = {"commit.manifest-merge.enabled": "false", "write.metadata.metrics.default": "truncate(16)"}
_ONE_ROW_A_GROUP = {
    "write.parquet.row-group-size-bytes": "1",
    "write.parquet.row-group-check-min-record-count": "1",
    "write.parquet.row-group-check-max-record-count": "1",
}
# Java 1.10 reads several keys of fixed bytes as the last one and no keys of nanoseconds at all, and lets bounds decide
# that a delete of NaN is not needed (platform 24).
_NO_KEYS = ("fixed[3]", "timestamp_ns", "timestamptz_ns", "float", "double")
_UNPARTITIONED: dict[str, Any] = {"spec-id": 0, "fields": []}


class HistoryTable:
    """One table, made twice; ``trace`` tells what every step came to."""

    def __init__(self, history: History, tables: JavaTables, folder: Path) -> None:
        properties = {**_PROPERTIES, "format-version": str(history.format_version)}
        # Java writes bounds of uuids as bytes and reads them as signed numbers: it skips deletes that it needs.
        properties |= {
            f"write.metadata.metrics.column.c{i}": "counts" for i, t in enumerate(history.column_types) if t == "uuid"
        }
        if history.one_row_a_group:
            properties |= _ONE_ROW_A_GROUP
        self.java: JavaTable = tables.create(history.schema, _UNPARTITIONED, properties, folder)
        self.model = TableModel()
        self.defaults: dict[str, Any] = {}
        self.trace: list[str] = []
        self.format_version = history.format_version
        self.formats = history.file_formats
        self.past: list[tuple[int, TableModel]] = []
        """Snapshots since the beginning, save those that a rollback left."""
        self.names = 0

    @property
    def expected(self) -> list[dict[str, Any]]:
        """What a reader must find now."""
        return self.model.rows(self.java.schema, self.defaults)

    def fitted(self, policy: Mapping[str, str]) -> dict[str, str]:
        """The policy with columns of today's schema to sort by."""
        chance = random.Random(str(policy))
        names = [f["name"] for f in self.java.schema["fields"] if isinstance(f["type"], str)]
        chosen = chance.sample(names, min(len(names), 2))
        if policy["strategy"] == "sort":
            terms = (f"{c} {chance.choice(('asc', 'desc'))} nulls {chance.choice(('first', 'last'))}" for c in chosen)
            return {**policy, "sort_order": ", ".join(terms)}
        if policy["strategy"] == "zorder":
            return {**policy, "zorder_columns": ",".join(chosen)}
        return dict(policy)

    def committed(self, model: TableModel) -> None:
        """Note that Java has committed a snapshot whose rows and files are those of ``model``."""
        self.model = model
        snapshot_id = self.java.snapshot_id
        assert snapshot_id is not None
        self.past.append((snapshot_id, model))

    def numbered(self, files: Sequence[tuple[Any, ModelFile]]) -> list[ModelFile]:
        """Files with the sequence number of the commit that brought them."""
        number = self.java.sequence_number
        return [ModelFile(f.path, number, f.spec_id, f.partition, f.rows) for _, f in files]

    # -- choices

    @property
    def schemas(self) -> list[int]:
        return [int(schema_id) for schema_id in self.java.table.schemas()]

    @property
    def specs(self) -> dict[int, Mapping[str, Any]]:
        return {int(i): self.java.spec_of(int(i)) for i in self.java.table.specs()}

    def some_spec(self, chance: random.Random) -> Mapping[str, Any]:
        """The current one, mostly."""
        return chance.choice(list(self.specs.values())) if chance.random() < 0.3 else self.java.spec

    def key_columns(self, schema: Mapping[str, Any], chance: random.Random) -> list[int]:
        """Ids of columns that an equality delete may go by, dropped ones among them."""
        plain = [f["id"] for f in schema["fields"] if isinstance(f["type"], str) and f["type"] not in _NO_KEYS]
        dropped = sorted(set(plain) - {f["id"] for f in self.java.schema["fields"]})
        plain = dropped if dropped and chance.random() < 0.5 else plain
        return sorted(chance.sample(plain, min(len(plain), chance.choice((1, 2, 2)))))

    def like_an_old_one(
        self, row: Row, ids: Sequence[int], chance: random.Random, schema: Mapping[str, Any] | None = None
    ) -> Row:
        """Mostly with the key of a row that is, or was, in the table."""
        rows = [old for file in self.model.files for old in file.rows]
        if not rows or chance.random() < 0.2:
            return row
        old, made = chance.choice(rows), dict(row)
        for field in (schema or self.java.schema)["fields"]:
            if field["id"] in ids:
                value = old.get(str(field["id"]))
                if (value is None and field["required"]) or (value is not None and not fits(field["type"], value)):
                    value = random_value(field["type"], chance, required=True)
                made[str(field["id"])] = value
        return made
