"""Sentences about mistakes of a set-up say what to do next (rule 120)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ProfileNotFound

from icekeeper.catalogs.load import open_catalog
from icekeeper.cli.reports import _write
from icekeeper.errors import PolicyError, StorageError
from icekeeper.state.open import open_state
from icekeeper.storage.failures import describe_failure


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (".", "; it is a folder, so name a file in it with ICEKEEPER_STATE"),
        ("text", "file is not a database; it is another program's, or damaged: put a copy of it"),
        ("/dev/full", "database or disk is full; free space there, or name another file with"),
    ],
    ids=["folder", "another file", "full disk"],
)
def test_a_state_file_that_cannot_be_used(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(StorageError) as caught:
        open_state({"ICEKEEPER_STATE": str(tmp_path / name)}).require_writable()
    assert sentence in str(caught.value)


def test_credentials_and_profiles_that_are_not_there() -> None:
    assert "; set them as for the AWS CLI" in describe_failure(NoCredentialsError(), None)
    told = describe_failure(ProfileNotFound(profile="nix"), None)
    assert "(nix)" in told
    assert "correct AWS_PROFILE or client.profile-name" in told


def test_a_region_that_does_not_exist_is_named() -> None:
    error = EndpointConnectionError(endpoint_url="https://lake.s3.eu-nowhere-9.amazonaws.com/k?list-type=2")
    told = describe_failure(error, None)
    assert "at lake.s3.eu-nowhere-9.amazonaws.com; correct the region if AWS has none of that name" in told
    assert describe_failure(error, "http://127.0.0.1:9").endswith("nothing answers at http://127.0.0.1:9")


def test_braces_in_pyicebergs_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  lake: {type: sql, uri: x}\n")
    with pytest.raises(PolicyError, match="write each property on a line of its own, without braces"):
        open_catalog("lake")


def test_a_catalog_without_uri() -> None:
    with pytest.raises(PolicyError, match="set it beside the catalog's type"):
        open_catalog("lake", {"type": "sql"})


def test_a_page_replaces_no_pipe_and_no_device(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(PolicyError, match="it is no ordinary file; choose another file"):
        _write(pipe, "page")
    assert pipe.is_fifo()
