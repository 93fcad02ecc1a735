"""Settings and table metadata for tests that need no files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Layer, ResolvedPolicy, layers_for, resolve

NONE: Mapping[str, str] = {}
NOW_MS = 1_700_000_000_000
MB = 1024 * 1024


def resolved(table: Mapping[str, str] = NONE, environment: Mapping[str, str] = NONE, /, **sets: str) -> ResolvedPolicy:
    """The policy of a table with these properties, variables and ``--set`` values."""
    return resolve(layers_for(table, environment, sets))


def refusal(table: Mapping[str, str] = NONE, environment: Mapping[str, str] = NONE, /, **sets: str) -> str:
    """The message with which these settings are refused."""
    with pytest.raises(PolicyError) as caught:
        resolved(table, environment, **sets)
    return str(caught.value)


def forget_credentials(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Hide all AWS credentials from this process."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", raising=False)  # a local stack in this process sets it
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def policy(**values: object) -> ResolvedPolicy:
    return resolve([Layer("this call", values)])


def table(
    summary: object = None, *, snapshots: int = 1, age_hours: int = 1, version: int = 2, **properties: str
) -> TableMetadata:
    """A table with ``snapshots`` hourly snapshots; the newest is ``age_hours`` old and has ``summary``."""
    raw = [
        {"snapshot-id": n + 1, "timestamp-ms": NOW_MS - (age_hours + snapshots - 1 - n) * HOUR_MS, "summary": {}}
        for n in range(snapshots)
    ]
    if raw:
        raw[-1]["summary"] = summary
    return TableMetadata(
        {
            "format-version": version,
            "location": "s3://b/t",
            "schema": {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]},
            "snapshots": raw,
            "current-snapshot-id": snapshots or -1,
            "properties": {name.replace("_", "."): value for name, value in properties.items()},
        }
    )


def small_files(count: int, average: float) -> dict[str, str]:
    return {"total-data-files": str(count), "total-files-size": str(int(count * average))}
