"""Open a catalog by its name in PyIceberg's configuration."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergSqlCatalog

from icekeeper.catalogs.configured import ConfiguredCatalog
from icekeeper.catalogs.load import known_catalogs, open_catalog, with_secrets
from icekeeper.catalogs.s3tables import S3TablesCatalog
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.errors import PolicyError, StorageError
from icekeeper.text import masked
from local_stack.moto_server import MotoServer

ARN = "arn:aws:s3tables:eu-west-1:111122223333:bucket/lake"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, without the developer's configuration."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    PyIcebergSqlCatalog("made", uri=f"sqlite:///{tmp_path}/c.db").close()
    return tmp_path


def configure(home: Path, text: str) -> None:
    (home / ".pyiceberg.yaml").write_text(text)


def test_the_file_and_the_environment_define_catalogs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(home, f"catalog:\n  Lake:\n    type: sql\n    uri: sqlite:///{home}/c.db\n    warehouse: {home}/w\n")
    catalog = open_catalog("lake")
    assert isinstance(catalog, SqlCatalog)
    assert catalog.id == ("lake", f"{home}/w")
    assert list(catalog.list_tables()) == []
    catalog.close()
    assert open_catalog("lake", {"warehouse": "new"}).id.warehouse == "new"  # arguments override the file
    monkeypatch.setenv("PYICEBERG_CATALOG__OTHER__URI", f"sqlite:///{home}/c.db")
    assert isinstance(open_catalog("other"), SqlCatalog)  # its type is inferred


def test_a_variable_overrides_one_property_of_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name has ``__`` for a dot and ``_`` for a hyphen, as in docs/catalogs.md."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "catalogs.md").read_text()
    assert "`s3.access-key-id` of the catalog `lake` is\n`PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID`" in page
    configure(home, "catalog:\n  lake:\n    type: rest\n    s3.access-key-id: old\n    s3.region: r\n")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID", "new")
    assert known_catalogs()["lake"] == {"type": "rest", "s3.access-key-id": "new", "s3.region": "r"}


@pytest.mark.parametrize(
    "how", [{"type": "s3tables"}, {"py-catalog-impl": "icekeeper.catalogs.s3tables.S3TablesCatalog"}]
)
def test_a_table_bucket_opens_by_type_or_by_class(how: dict[str, str]) -> None:
    catalog = open_catalog("lake", {**how, "warehouse": ARN})
    assert isinstance(catalog, S3TablesCatalog)
    assert catalog.id.warehouse == ARN
    catalog.close()


def test_a_bucket_opened_by_its_arn_uses_configured_properties_but_not_the_name(home: Path) -> None:
    settings = "s3tables.endpoint: http://127.0.0.1:9, s3.access-key-id: k, s3.secret-access-key: s"
    properties = "".join(f"    {item}\n" for item in ["type: s3tables", f"warehouse: {ARN}", *settings.split(", ")])
    configure(home, f"catalog:\n  mine:\n{properties}")
    catalog = open_catalog(ARN)
    assert (catalog.id) == ("lake", ARN)
    with pytest.raises(StorageError, match=r"catalog lake \(arn:.*\) cannot be reached: nothing answers at http://127"):
        list(catalog.list_tables())
    assert open_catalog("mine").id.name == "mine"


def test_a_catalog_has_its_configured_name_except_sql_catalogs(home: Path) -> None:
    """The name is part of the identity of its tables; a SQL catalog stores the name as the caller spells it."""
    sql = f"    type: sql\n    uri: sqlite:///{home}/c.db\n"
    configure(home, f"catalog:\n  lake:\n{sql}  bucket:\n    type: s3tables\n    warehouse: {ARN}\n")
    assert open_catalog("BUCKET").id.name == "bucket"
    catalog = open_catalog("Lake")
    assert catalog.id.name == "Lake"


NO_ARN = "must be the ARN of a table bucket"
NO_SECRET = "catalog lake: credential must be secretsmanager: and the ARN of a secret"
NO_SWITCH = "glue.skip-archive is '{}'; set it to true or false"
TYPES = "type '{}'; supported are rest, sql, s3tables, glue"
MISTAKES = {
    "catalog lake has no": ({"type": "rest"}, {"type": "sql"}, {"warehouse": "w"}, {"uri": "ftp://x"}),
    **{TYPES.format(kind): ({"type": kind, "uri": "thrift://x"},) for kind in ("hive", "dynamodb", "bigquery", "none")},
    TYPES.format("some.Catalog"): ({"py-catalog-impl": "some.Catalog"},),
    NO_ARN: tuple(
        {"type": "s3tables", "warehouse": warehouse}
        for warehouse in ("", "s3://lake", "arn:aws:s3:::lake", "arn:aws:s3tables:eu-west-1:1:table/x")
    ),
    **{
        NO_SWITCH.format(value): ({"type": "glue", "glue.region": "eu-west-1", "glue.skip-archive": value},)
        for value in ("maybe", "")
    },
    NO_SECRET: tuple(
        {"type": "rest", "uri": "http://c", "credential": f"secretsmanager:{arn}"}
        for arn in ("", "lake", "arn:aws:s3:::lake", "arn:aws:secretsmanager:us-east-1:1:secret")
    ),
    "driver of its database is not installed: No module named": (
        {"type": "sql", "uri": "postgresql+pg8000://u:p@127.0.0.1/x"},
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_wrong_properties_are_a_policy_error(message: str) -> None:
    for properties in MISTAKES[message]:
        with pytest.raises(PolicyError) as refused:
            open_catalog("lake", properties)
        assert message in str(refused.value)


def test_errors_of_opening_a_catalog_hide_the_password(home: Path) -> None:
    with pytest.raises(PolicyError, match=f"^the catalog is 'arn:aws:s3:::lake', but {NO_ARN}"):
        open_catalog("arn:aws:s3:::lake")
    with pytest.raises(StorageError) as caught:
        open_catalog("lake", {"type": "sql", "uri": f"sqlite:///{home}/no/such/secret-word.db"})
    assert "secret-word" not in str(caught.value)
    configure(home, "catalog: [\n")
    with pytest.raises(PolicyError, match=r"PyIceberg's configuration cannot be read: \.pyiceberg\.yaml is not valid"):
        open_catalog("lake")


def test_the_error_about_an_unknown_catalog_names_the_known_catalogs_and_how_to_add_it(home: Path) -> None:
    with pytest.raises(PolicyError, match=r"no catalog 'lake' \(configured: none\).*PYICEBERG_CATALOG__LAKE__URI"):
        open_catalog("lake")
    configure(home, "catalog:\n  b:\n    uri: http://x\n  a:\n    uri: http://x\n")
    with pytest.raises(PolicyError, match=r"no catalog 'lake' \(configured: a, b\)"):
        open_catalog("lake")


def test_a_configuration_of_another_user_in_the_working_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may name commands, which would run as the user who starts Icekeeper in a folder such as /tmp."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    for name, value in (("HOME", str(home)), ("PYICEBERG_HOME", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(here)
    (here / ".pyiceberg.yaml").write_text("catalog:\n  found:\n    uri: http://127.0.0.1:9\n")
    assert "found" in known_catalogs()
    if os.getuid() == 0:
        os.chown(here / ".pyiceberg.yaml", 65534, -1)
    else:
        monkeypatch.setattr("os.getuid", lambda: 65534)
    with pytest.raises(PolicyError, match=r"here/\.pyiceberg\.yaml in the working .* set PYICEBERG_HOME to its folder"):
        known_catalogs()
    (here / ".pyiceberg.yaml").rename(home / "theirs")
    (here / ".pyiceberg.yaml").symlink_to(home / "theirs")
    with pytest.raises(PolicyError, match="belongs to another user"):
        known_catalogs()
    monkeypatch.setenv("PYICEBERG_HOME", str(here))
    assert "found" in known_catalogs()


# Values stored in AWS Secrets Manager.


@pytest.fixture
def aws(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> MotoServer:
    """Credentials and endpoint in the environment, as in a Lambda function."""
    for name, value in {
        "AWS_ENDPOINT_URL": moto_server.endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
    }.items():
        monkeypatch.setenv(name, value)
    return moto_server


def secret(aws: MotoServer, **value: Any) -> str:
    made = aws.client("secretsmanager").create_secret(Name=f"lake-{uuid.uuid4()}", **value)
    return f"secretsmanager:{made['ARN']}"


def test_a_value_from_secrets_manager_is_masked(home: Path, aws: MotoServer) -> None:
    uri = secret(aws, SecretString=f"sqlite:///{home}/c.db")
    catalog = open_catalog("lake", {"type": "sql", "uri": uri, "token": secret(aws, SecretString="t0ken-of-the-lake")})
    assert isinstance(catalog, SqlCatalog)
    assert list(catalog.list_tables()) == []
    catalog.close()
    assert masked("sent t0ken-of-the-lake") == "sent ***"


def test_other_values_need_no_secrets_manager() -> None:
    configured = ConfiguredCatalog.of("lake", {"type": "rest", "credential": "id:secretsmanager", "uri": "https://c"})
    assert with_secrets(configured) is configured


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"SecretBinary": b"x"}, PolicyError, r"catalog lake: the secret arn:\S+ of credential is not text"),
        (None, StorageError, r"catalog lake: the secret arn:\S+ of credential .*ResourceNotFoundException"),
    ],
)
def test_a_secret_that_is_missing_or_not_text_fails_by_name(
    aws: MotoServer, value: dict[str, Any] | None, error: type[Exception], message: str
) -> None:
    missing = "secretsmanager:arn:aws:secretsmanager:us-east-1:123456789012:secret:gone-a1B2c3"
    credential = missing if value is None else secret(aws, **value)
    with pytest.raises(error, match=message):
        open_catalog("lake", {"type": "rest", "uri": "http://127.0.0.1:1", "credential": credential})
