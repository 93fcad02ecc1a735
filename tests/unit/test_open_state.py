"""Where ICEKEEPER_STATE leads, and what is said when it leads nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.errors import PolicyError, StorageError
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.dynamodb.table import open_table
from icekeeper.state.identity import TableAddress, parse_address
from icekeeper.state.open import open_state, state_folder
from icekeeper.state.sqlite.store import SqliteStateStore

HELP = "write a path, or dynamodb://TABLE[?region=REGION&profile=NAME&endpoint=URL]"


OF_A_STACK = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL")
"""A local stack of the same process sets these."""


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the person who runs the tests, and no metadata service."""
    for name in (
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        *OF_A_STACK,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    ("text", "environment", "address"),
    [
        ("dynamodb://State.Table_1-x", {}, TableAddress("State.Table_1-x")),
        ("dynamodb://T-1/", {"AWS_REGION": "eu-west-1"}, TableAddress("T-1", "eu-west-1")),
        ("dynamodb://T-1", {"AWS_DEFAULT_REGION": "eu-west-2"}, TableAddress("T-1", "eu-west-2")),
        ("dynamodb://T-1?region=eu-west-3", {"AWS_REGION": "eu-west-1"}, TableAddress("T-1", "eu-west-3")),
        (
            "dynamodb://T-1?region=r&endpoint=http://127.0.0.1:5000",
            {},
            TableAddress("T-1", "r", "http://127.0.0.1:5000"),
        ),
        ("/var/lib/state.db", {}, None),
        ("dynamodb", {}, None),
        ("", {}, None),
    ],
)
def test_an_address_names_a_table_or_a_file(
    text: str, environment: dict[str, str], address: TableAddress | None
) -> None:
    assert parse_address({"ICEKEEPER_STATE": text, **environment}) == address


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sqlite:///x", "has an unknown scheme"),
        ("s3://bucket/state", "has an unknown scheme"),
        ("dynamodb://", "names no DynamoDB table"),
        ("dynamodb://ab", "names no DynamoDB table (the name of a table has at least 3 characters)"),
        ("dynamodb:table", "names no DynamoDB table"),
        ("dynamodb://[table", "names no DynamoDB table"),
        ("dynamodb://user@table", "names no DynamoDB table"),
        ("dynamodb://table/item", "names no DynamoDB table"),
        ("dynamodb://table#part", "names no DynamoDB table"),
        ("dynamodb://table?regoin=eu", "has an unknown setting 'regoin'"),
        ("dynamodb://table?endpoint=localhost:8000", "has an endpoint that is no http(s) address"),
    ],
)
def test_a_malformed_address_is_refused(text: str, what: str) -> None:
    for ask in (parse_address, open_state, state_folder):
        with pytest.raises(PolicyError) as caught:
            ask({"ICEKEEPER_STATE": text})
        assert str(caught.value) == f"ICEKEEPER_STATE={text} {what}: {HELP}"


def test_the_store_is_the_one_that_is_named(tmp_path: Path) -> None:
    file = open_state({"ICEKEEPER_STATE": str(tmp_path / "s.db")})
    assert isinstance(file, SqliteStateStore)
    assert file.path == tmp_path / "s.db"
    assert isinstance(open_state({"ICEKEEPER_STATE": "dynamodb://table?region=eu-west-1"}), DynamoStateStore)


def test_the_folder_of_a_named_file_must_be_there(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    with pytest.raises(StorageError) as caught:
        open_state({"ICEKEEPER_STATE": str(volume / "s.db")})
    assert str(caught.value) == (
        f"the state file {volume}/s.db cannot be used: there is no folder {volume}; mount or make it, or correct "
        "ICEKEEPER_STATE"
    )
    assert not volume.exists()
    home = open_state({"HOME": str(tmp_path / "new")})
    home.require_writable()
    assert (tmp_path / "new/.local/state/icekeeper/state.db").is_file()


def test_lists_lie_beside_a_file_and_else_in_the_users_folder(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert state_folder({**home, "ICEKEEPER_STATE": "/x/s.db"}) == Path("/x")
    assert state_folder({**home, "ICEKEEPER_STATE": "dynamodb://table"}) == tmp_path / ".local/state/icekeeper"
    assert state_folder(home) == tmp_path / ".local/state/icekeeper"


@pytest.mark.usefixtures("no_aws")
def test_a_region_must_be_known() -> None:
    with pytest.raises(PolicyError) as caught:
        open_table(TableAddress("table"))
    assert str(caught.value) == (
        "the region of the state table table is not known: add ?region=REGION to ICEKEEPER_STATE"
    )


@pytest.mark.usefixtures("no_aws")
def test_without_credentials_the_sentence_says_so() -> None:
    with pytest.raises(StorageError) as caught:
        open_state({"ICEKEEPER_STATE": "dynamodb://table?region=eu-west-1"}).require_writable()
    assert str(caught.value) == (
        "the state table table cannot be used: no AWS credentials were found; configure them as for the AWS CLI"
    )
