"""Sings while moto still needs what the local stack adds to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from botocore.exceptions import ClientError
from moto.glue.responses import GlueResponse

from local_stack.moto_server import MotoServer


@contextmanager
def moto_ignores_versions() -> Iterator[None]:
    """moto as it is, without what ``versions_checked`` adds."""
    with mock.patch.object(GlueResponse, "update_table", inspect.unwrap(GlueResponse.update_table)):
        yield


def test_moto_still_updates_a_glue_table_whatever_version_is_asked_for(moto_server: MotoServer) -> None:
    glue = moto_server.client("glue")
    glue.create_database(DatabaseInput={"Name": "canary"})
    glue.create_table(DatabaseName="canary", TableInput={"Name": "t"})
    stale = {"DatabaseName": "canary", "TableInput": {"Name": "t"}, "VersionId": "0"}
    try:
        with pytest.raises(ClientError, match="ConcurrentModificationException"):
            glue.update_table(**stale)
        with moto_ignores_versions():
            try:
                glue.update_table(**stale)
            except ClientError:
                pytest.fail("moto checks VersionId by now: remove local_stack/moto_glue.py and its use")
    finally:
        glue.delete_database(Name="canary")
