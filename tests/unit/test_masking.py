"""All values of a configuration except those of listed properties are masked, in every encoding."""

from __future__ import annotations

import json
import logging
import time
from typing import Any
from urllib.parse import quote

import pyiceberg.catalog.glue
import pyiceberg.catalog.rest
import pyiceberg.catalog.sql
import pyiceberg.io
import pytest

from icekeeper.detection.proposal import Skip
from icekeeper.errors import CommitConflict, StorageError
from icekeeper.policy import Operation
from icekeeper.report.outcome import failed
from icekeeper.text import (
    MaskingFormatter,
    address_to_show,
    mask,
    masked,
    masked_document,
    remember_secrets,
    secrets_of,
)

SECRET = "v3ry/S3cret+key="


def test_listed_properties_are_shown_and_all_others_are_masked() -> None:
    """The value of any other property is a secret (rule: mask-values-not-listed)."""
    for key in (
        *("token", "credential", "password", "s3.secret-access-key", "s3.session-token", "client.secret-access-key"),
        *("header.Authorization", "header.X-Api-Key", "HEADER.x-anything"),
        *("adls.account-key", "adls.sas-token", "adls.client-secret", "adls.client-id", "adls.token"),
        *("gcs.oauth2.token", "hf.token", "whatever-pyiceberg-adds-next", "s3.new-thing"),
    ):
        assert mask(f"it said {SECRET}!", {key: SECRET}) == "it said ***!", key
    properties = {"warehouse": "s3://lake/wh", "s3.endpoint": "http://127.0.0.1:8333", "s3.region": "eu-central-1"}
    text = "s3://lake/wh at http://127.0.0.1:8333 in eu-central-1"
    assert mask(text, {**properties, "rest.sigv4-enabled": "true", "custom": "true"}) == text


def test_no_secret_property_of_pyiceberg_is_listed() -> None:
    """No property of PyIceberg whose name suggests a secret is listed; new properties are masked by default."""
    modules = (pyiceberg.io, pyiceberg.catalog, pyiceberg.catalog.rest, pyiceberg.catalog.sql, pyiceberg.catalog.glue)
    keys = {value for module in modules for name, value in vars(module).items() if name.isupper() and _is_key(value)}
    words = ("secret", "token", "credential", "password", "key", "connection-string", "ticket", "kwargs")
    unmasked = {key for key in keys if any(word in key for word in words) and not secrets_of({key: "12345678"})}
    assert {key for key in unmasked if not key.endswith(".access-key-id")} == set()  # an access key id is a name
    assert len(keys) > 50


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and value.islower() and "/" not in value


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://reader:hunter22@host/x", "https://reader:***@host/x"),
        ("https://reader:hun/te@r22@host/x", "https://reader:***@host/x"),
        ("postgresql+psycopg2://u:pa/ss?wd@db:5432/c", "postgresql+psycopg2://u:***@db:5432/c"),
        ("https://host/x?token=abcdefgh&mode=ro", "https://host/x?token=***&mode=***"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9/"),
        ("s3://bucket/data/email=a@b.com/f.parquet", "s3://bucket/data/email=a@b.com/f.parquet"),
        ("abfss://container@account.dfs.core.windows.net/t", "abfss://container@account.dfs.core.windows.net/t"),
        ("not an address: a@b", "not an address: a@b"),
    ],
)
def test_addresses_are_shown_without_credentials(address: str, shown: str) -> None:
    assert address_to_show(address) == shown


def test_parts_and_encodings_of_a_secret_are_secrets() -> None:
    properties: dict[str, Any] = {
        "credential": "client-one:the-client-secret",
        "header.authorization": "Bearer abc.def.ghi",
        "adls.connection-string": "DefaultEndpointsProtocol=https;AccountName=lake;AccountKey=c2VjcmV0LWtleQ==;",
        "auth": {"type": "basic", "basic": {"username": "reader", "password": "nested-password"}},
        "ssl": {"client": {"key": "/etc/keys/client.pem"}},
    }
    for secret in ("the-client-secret", "abc.def.ghi", "c2VjcmV0LWtleQ==", "nested-password", "/etc/keys/client.pem"):
        assert mask(f"<{secret}>", properties) == "<***>", secret
    assert mask("basic https lake", properties) == "basic https lake"
    address = {"uri": "postgresql://u:pa/ss%2Bword@db/c?sslpassword=other-secret", "type": "sql"}
    shown = mask("password pa/ss%2Bword, pa/ss+word or other-secret for u of db", address)
    assert shown == "password ***, *** or *** for u of db"
    awkward = 'pä"ss\\wo/rd &\n'
    encoded = [awkward, json.dumps(awkward), json.dumps(awkward, ensure_ascii=False), repr(awkward), quote(awkward)]
    for text in [*encoded, quote(awkward, safe="")]:
        assert "wo" not in mask(text, {"token": awkward}), text


def test_remembered_secrets_appear_in_no_error_outcome_log_line_or_document() -> None:
    # Not an ordinary word: it remains remembered, and would be masked in texts of later tests.
    remember_secrets({"header.x-key": "remembered-secret-1", "uri": "http://u:pw-7-x-9/secret@h/"})
    message = "403 for remembered-secret-1 at http://u:pw-7-x-9/secret@h/ and http://x:never-known@y/"
    expected = "403 for *** at http://u:***@h/ and http://x:***@y/"
    assert masked(message) == expected
    for error in (StorageError(message), CommitConflict(message)):
        assert str(error) == expected
    outcome = failed(Operation.COMPACT, f"ValueError: {message}")
    assert (outcome.summary, outcome.reason) == (f"ValueError: {expected}",) * 2
    assert masked_document({"n": 1, "l": [message, {"t": (message,)}]}) == {"n": 1, "l": [expected, {"t": [expected]}]}
    try:
        raise ValueError(message)
    except ValueError as error:
        record = logging.LogRecord("icekeeper", logging.ERROR, "f", 1, "%s", (message,), (ValueError, error, None))
    line = MaskingFormatter().format(record)
    assert "403 for ***" in line
    assert "ValueError" in line
    assert "secret" not in line
    assert "never-known" not in line


@pytest.mark.parametrize("part", ["a", "a://b:", "a://b", "@a://", "a://u:p@", "?", "?a", ";a=", "a "])
def test_a_long_hostile_text_is_masked_quickly(part: str) -> None:
    """Backtracking would take eleven seconds for 40,000 letters, and hours for a million."""
    text, begun_s = part * (300_000 // len(part)), time.process_time()
    masked(text)
    address_to_show(text)
    secrets_of({"uri": f"http://h/{text}"})
    assert time.process_time() - begun_s < 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://u:p@h/x", "http://u:***@h/x"),
        ("http://u:p/a@b:c@h/x", "http://u:***@h/x"),
        ("http://u:a://b:c@h", "http://u:***@h"),
        ("x1http://u:p@h", "x1http://u:***@h"),
        ("postgresql+psycopg2://u:p@h and 'mysql://:q@h'", "postgresql+psycopg2://u:***@h and 'mysql://:***@h'"),
        (f"{'s' * 60}://u:p@h", f"{'s' * 60}://u:***@h"),
        ("http://u@h:80/x@y", "http://u@h:80/x@y"),
        ("s3://b/a@b http://h:80/x", "s3://b/a@b http://h:80/x"),
        ("http://u:pass word@h", "http://u:pass word@h"),
    ],
)
def test_passwords_in_addresses_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_a_very_long_message_is_cut() -> None:
    """It would be too long for an item of the state and for a log line."""
    value = "x" * 1_000_000
    messages = [
        str(StorageError(f"begin {value} end")),
        failed(Operation.COMPACT, f"begin {value} end").summary,
        str(failed(Operation.COMPACT, f"begin {value} end").reason),
        Skip("ns.t", f"begin {value} end").reason,
    ]
    assert {(item[:8], item[-5:], len(item)) for item in messages} == {("begin xx", "x end", 18_030)}
    assert " … (982010 more characters) … " in messages[0]
    assert str(StorageError("y" * 20_000)) == "y" * 20_000
    assert str(StorageError(messages[0])) == messages[0]


def test_short_and_ordinary_values_are_not_masked() -> None:
    assert mask("it is true that abc has 5", {"x": "true", "y": "abc", "z": "5"}) == "it is true that abc has 5"
    remember_secrets({"some-key": "lake"})
    assert masked("the lake") == "the lake"


def test_only_the_newest_secrets_are_remembered() -> None:
    for number in range(300):
        remember_secrets({"token": f"vended-token-{number:04}"})
    assert masked("vended-token-0299") == "***"
    assert masked("vended-token-0000") == "vended-token-0000"
