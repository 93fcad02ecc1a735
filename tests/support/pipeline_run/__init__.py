"""``make pipeline``: the whole stack on this machine, with one table's compaction failing on purpose."""
