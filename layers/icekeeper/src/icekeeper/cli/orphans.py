"""``icekeeper orphans``: the orphans of a whole bucket, from one listing (rule 101)."""

from __future__ import annotations

from typing import Annotated

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Engine, Settings, Unsafe, overrides
from icekeeper.cli.console import EXIT_OK, engine_and_progress, listings, people, print_failed, print_json
from icekeeper.engines.names import EngineName

__all__ = ["orphans"]


def orphans(
    catalog: CatalogName,
    bucket: Annotated[
        str,
        typer.Option(
            "--bucket", metavar="BUCKET|LOCATION", help="a bucket's name, or the address of a warehouse or folder"
        ),
    ],
    settings: Settings = None,
    engine: Engine = EngineName.AUTO,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be removed, and change nothing")] = False,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Remove the orphans of all tables below a bucket or folder; report what belongs to no table."""
    from icekeeper.report.outcome import PassStatus, Status
    from icekeeper.report.terminal import print_bucket
    from icekeeper.runtime import Runtime

    chosen = overrides(settings)
    runtime = Runtime.open(catalog)
    with engine_and_progress(engine, as_json=as_json) as (started, progress):
        outcome = runtime.sweep_bucket(
            _address(bucket), chosen, started, dry_run=dry_run, unsafe=unsafe, progress=progress
        )
    if as_json:
        print_json(outcome.to_json(listings()))
    print_bucket(people(as_json=as_json), outcome)
    if outcome.status is PassStatus.SUCCEEDED:
        return EXIT_OK
    bad = [f"{name}: {o.reason}" for name, o in outcome.tables.items() if o.status in (Status.FAILED, Status.REFUSED)]
    return print_failed("; ".join(bad))


def _address(bucket: str) -> str:
    """The address of a bucket or folder; text without a slash is the name of an S3 bucket."""
    return bucket.rstrip("/") if "/" in bucket else f"s3://{bucket}"
