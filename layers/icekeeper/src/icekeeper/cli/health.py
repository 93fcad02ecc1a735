"""``icekeeper health``: how a table looks, what is wrong with it, and the settings in force."""

from __future__ import annotations

from icekeeper.cli.arguments import AsJson, CatalogName, Settings, Table, Unsafe, overrides, table_name
from icekeeper.cli.console import EXIT_OK, about, answer

__all__ = ["health"]


def health(
    table: Table, catalog: CatalogName, settings: Settings = None, unsafe: Unsafe = False, as_json: AsJson = False
) -> int:
    """Say how a table looks, maintained or not; changes nothing, and reads a few files of the table."""
    from icekeeper.report.terminal import print_health
    from icekeeper.runtime import Runtime

    chosen, name = overrides(settings), table_name(table)
    stats = Runtime.open(catalog).health(name, chosen, unsafe=unsafe)
    document = {
        **about(str(stats.identity.table), stats.identity.catalog),
        "snapshot_id": stats.snapshot_id,
        "observed_ms": stats.observed_ms,
        "counters": dict(stats.counters),
        "warnings": [{"kind": kind, "message": message} for kind, message in stats.warnings.items()],
        "policy": dict(stats.policy),
    }
    console = answer(document, as_json=as_json)
    print_health(console, document)
    return EXIT_OK
