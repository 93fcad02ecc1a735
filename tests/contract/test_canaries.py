"""Fails when moto or PyIceberg no longer needs, or no longer has, what we build on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from botocore.exceptions import ClientError
from moto.glue.responses import GlueResponse
from pyiceberg.catalog.rest import RestCatalog

from local_stack.moto_server import MotoServer

# Sings while moto still needs what the local stack adds to it.


@contextmanager
def moto_ignores_versions() -> Iterator[None]:
    """moto as it is, without what ``moto_glue`` adds."""
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


# Our own _fetch_config sets the same attributes as PyIceberg's (rule: admit-server-settings-by-list).


def test_pyiceberg_still_sets_only_what_our_configuration_of_rest_sets() -> None:
    theirs = set(re.findall(r"self\.(\w+) = ", inspect.getsource(RestCatalog._fetch_config)))
    assert theirs == {"properties", "uri", "_supported_endpoints", "_namespace_separator"}, (
        "adapt icekeeper/pyiceberg_private/rest_session.py"
    )
