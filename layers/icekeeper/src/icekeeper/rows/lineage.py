"""Row lineage: rows keep their id and the sequence number of their last change, whatever file they move to.

Source: specification, "Row Lineage" (rule 17).  A rewrite writes both as columns, with the values that a reader of the
input resolves: the stored value where there is one, else for the id that of the file's first row plus the position, and
for the last change the file's data sequence number.  (Java takes the file sequence number; the two differ only in files
that were rewritten without these columns.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import TableUnsupported
from icekeeper.rows.read_task import InputFile

__all__ = ["LAST_UPDATED_ID", "LINEAGE_NAMES", "ROW_ID_ID", "InheritedLineage", "resolved_lineage", "with_lineage"]

# Specification, "Reserved Field IDs".
ROW_ID_ID = 2147483540
LAST_UPDATED_ID = 2147483539
_FIELDS = (
    {"id": ROW_ID_ID, "name": "_row_id", "required": False, "type": "long"},
    {"id": LAST_UPDATED_ID, "name": "_last_updated_sequence_number", "required": False, "type": "long"},
)
LINEAGE_NAMES = tuple(str(field["name"]) for field in _FIELDS)
"""The names of the two columns, in the order in which files have them."""


@dataclass(frozen=True, slots=True)
class InheritedLineage:
    """What rows without stored values have: the row at position ``n`` has the id ``first_row_id + n``, all of them have
    the file's data sequence number."""

    first_row_id: int
    sequence_number: int

    def after(self, rows: int) -> InheritedLineage:
        """The same for the rows behind the first ``rows``."""
        return InheritedLineage(self.first_row_id + rows, self.sequence_number)


def with_lineage(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A table's schema with the two columns of row lineage at its end.

    Raises:
        TableUnsupported: the table has a column of one of these reserved names.
    """
    taken = {field["name"] for field in schema["fields"]} & {field["name"] for field in _FIELDS}
    if taken:
        raise TableUnsupported(f"column {min(taken)} has a name that row lineage reserves; rename it")
    return {**schema, "fields": [*schema["fields"], *_FIELDS]}


def resolved_lineage(
    batch: pa.RecordBatch, ids: Sequence[int], source: InputFile | InheritedLineage, first_row: int
) -> pa.RecordBatch:
    """The batch with the two columns filled in, if it has them.

    ``ids`` are the field ids of its columns, ``first_row`` is the position of its first row in the source.
    """
    if source.first_row_id is None or ROW_ID_ID not in ids:
        return batch
    start = source.first_row_id + first_row
    inherited = {
        ROW_ID_ID: pa.arange(start, start + batch.num_rows),
        LAST_UPDATED_ID: pa.scalar(source.sequence_number, pa.int64()),
    }
    for field_id, value in inherited.items():
        index = ids.index(field_id)
        batch = batch.set_column(index, batch.schema.field(index), pc.coalesce(batch.column(index), value))
    return batch
