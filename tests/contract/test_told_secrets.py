"""Catalogs that fail, and servers and files that repeat what they were given: no secret comes out."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.pipeline.deployment import parse_catalog_file
from icekeeper.text import masked
from support.maintained_table import NAME, new_table
from support.scripted_rest import CommitScript, ScriptedRest, error_document, scripted_rest

SECRETS = {
    "header.X-Api-Key": "key/of-the-header",
    "header.Authorization": "Bearer of.some.token",
    "adls.account-key": "QWNjb3VudEtleQ==",
    "adls.connection-string": "AccountName=lake;AccountKey=cXVpdGUgb3RoZXI=",
    "the-next-thing-of-pyiceberg": "something-that-signs-in",
}
REPEATED = (*SECRETS.values(), "of.some.token", "cXVpdGUgb3RoZXI=")
PARTS = (*REPEATED, "pa55code", "word-of-the-address")


def nothing_told(error: BaseException) -> bool:
    """Neither by the sentence nor by the log line of a bug, which holds the whole chain."""
    logged = masked("".join(traceback.format_exception(error)))
    return not [part for part in PARTS for text in (str(error), repr(error), logged) if part in text]


@pytest.fixture
def server(local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[ScriptedRest]:
    with scripted_rest(new_table(local_catalog, tmp_path).catalog) as server:
        yield server


@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_server_that_repeats_what_it_was_sent(server: ScriptedRest, status: int) -> None:
    catalog = server.open(**SECRETS)
    base = catalog.load(NAME)
    assert "io_properties" not in repr(base)
    # Behind them the text is cut, and a part of a secret at the edge must not be left.
    for told in (" ".join(REPEATED), *("x" * length + " " + SECRETS["header.X-Api-Key"] for length in (180, 190, 195))):
        for body in (error_document(status, message=told), told.encode()):
            server.scripts.append(CommitScript(acts=False, status=status, body=body))
            with pytest.raises(MaintenanceError) as raised:
                catalog.commit(base, [], [{"action": "set-properties", "updates": {"a": "b"}}])
            assert nothing_told(raised.value)
            assert "key/" not in str(raised.value)


@pytest.mark.parametrize("kind", ["rest", "sql"])
@pytest.mark.parametrize(
    "address", ["u:pa55code/word-of-the-address@127.0.0.1:9/x", "u:pa55code/word-of-the-address@h:9x/"]
)
def test_an_address_whose_password_holds_a_slash(kind: str, address: str) -> None:
    uri = f"{'http' if kind == 'rest' else 'postgresql+psycopg2'}://{address}"
    with pytest.raises((PolicyError, StorageError)) as raised:
        open_catalog("closed", {"type": kind, "uri": uri, "warehouse": "file:///tmp/none", **SECRETS})
    assert nothing_told(raised.value)


@pytest.mark.parametrize("line", ["uri: [{}", "{{a: {}}}", "uri: a\n    uri: {}", "\turi: {}"])
def test_a_catalog_file_that_cannot_be_parsed_is_not_quoted(line: str) -> None:
    """Its secrets are not known yet: the line's number must do."""
    text = "catalog:\n  lake:\n    type: rest\n    " + line.format("something-that-signs-in") + "\n"
    with pytest.raises(PolicyError, match=r"^s3://c/f\.yaml is no catalog file: .* in line \d$") as raised:
        parse_catalog_file(text, "s3://c/f.yaml")
    assert "signs" not in "".join(traceback.format_exception(raised.value))
