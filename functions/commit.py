"""Changes tables and commits: drops partitions, compacts, merges manifests, counts distinct values.

Its role cannot delete: orphan removal deletes what a failed rewrite leaves behind.
"""

from __future__ import annotations

import icekeeper.operations.compaction.compact  # noqa: F401 - the first call would import it, with less CPU
from observability import function
from steps import carry_out

handle = function({"expire_partitions": carry_out, "compact": carry_out, "rewrite_manifests": carry_out})
