"""A hostile REST catalog: its configuration (rule: admit-server-settings-by-list), redirects and endpoints
(rule: own-keys-stay-with-own-endpoint)."""

from __future__ import annotations

import ast
import logging
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyiceberg
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.aws.settings import current_properties, identity_in
from icekeeper.catalogs import server_settings
from icekeeper.catalogs.catalog import Catalog
from icekeeper.cli import main
from icekeeper.errors import CommitStateUnknown, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from support.maintained_table import NAME, new_table
from support.scripted_rest import HostileRest, hostile_rest

MARK = "ICEKEEPER_HOSTILE_MARK"
PAIR = {"s3.access-key-id": "THEIRS", "s3.secret-access-key": "their-secret-key"}
VENDED = {**PAIR, "s3.session-token": "their-session-token", "s3.session-token-expires-at-ms": "4102444800000"}
OURS = {
    "s3.access-key-id": "OURS",
    "s3.secret-access-key": "our-own-secret-key",
    "client.session-token": "our-own-session-token",
    "client.role-arn": "arn:aws:iam::1:role/ours",
    "s3.region": "eu-west-1",
}


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """A catalog with one table, which no test changes."""
    folder = tmp_path_factory.mktemp("inner")
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "warehouse").as_uri())
    catalog.create_namespace("ns")
    yield new_table(catalog, folder).catalog
    catalog.close()


@pytest.fixture
def server(inner: Catalog) -> Iterator[HostileRest]:
    with hostile_rest(inner) as server:
        yield server


@pytest.fixture
def elsewhere(server: HostileRest) -> Iterator[HostileRest]:
    """A server of another origin."""
    with hostile_rest(server.inner) as other:
        yield other


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-environment")


def files_of(catalog: Catalog) -> Mapping[str, str]:
    return catalog.load(NAME).io_properties


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [item.getMessage() for item in caplog.records if item.levelno >= logging.WARNING]


# -- PyIceberg's property keys: a key that a new version adds fails a test until it is in one of these lists

ADMITTED = {
    *("namespace-separator", "prefix", "token", "uri", "client.region", "s3.region", "s3.endpoint"),
    *("s3.access-key-id", "s3.secret-access-key", "s3.session-token"),
    *("s3.server-side-encryption", "s3.sse-kms-key-id"),
}
# Keys that name a class, file, host, role, command or login.
DANGEROUS = {
    *("auth", "auth.manager", "py-catalog-impl", "py-io-impl", "s3.retry-strategy-impl", "botocore_session"),
    *("s3.signer", "s3.signer.endpoint", "s3.signer.uri", "s3.proxy-uri", "s3.resolve-region"),
    *("client.profile-name", "s3.profile-name", "client.role-arn", "s3.role-arn"),
    *("client.role-session-name", "s3.role-session-name", "s3.anonymous", "s3.force-virtual-addressing"),
    *("client.access-key-id", "client.secret-access-key", "client.session-token"),
    *("credential", "oauth2-server-uri", "scope", "audience", "resource", "ssl", "type", "warehouse"),
    *("rest.signing-name", "rest.signing-region", "rest.sigv4-enabled", "rest.sigv4.max-retries"),
    *("hdfs.host", "hdfs.port", "hdfs.user", "hdfs.kerberos_ticket", "hf.endpoint", "hf.token"),
    *("gcs.service.host", "gcs.session-kwargs", "gcs.oauth2.token", "gcs.project-id", "gcs.default-bucket-location"),
    *("adls.connection-string", "adls.credential", "adls.account-name", "adls.account-key", "adls.sas-token"),
    *("adls.tenant-id", "adls.client-id", "adls.client-secret", "adls.account-host", "adls.token", "adls.anon"),
    *("adls.blob-storage-authority", "adls.blob-storage-scheme"),
    *("adls.dfs-storage-authority", "adls.dfs-storage-scheme"),
    *("DEFAULT_SCHEME", "DEFAULT_NETLOC"),
}
# Limits and modes, which the operator chooses.
HARMLESS = {
    *("s3.connect-timeout", "s3.request-timeout", "buffer-size", "rest-page-size", "scan-planning-mode"),
    *("snapshot-loading-mode", "view-endpoints-supported", "gcs.access", "gcs.consistency", "gcs.cache-timeout"),
    *("gcs.oauth2.token-expires-at", "gcs.requester-pays", "gcs.version-aware"),
}
# Strings that are not property keys.
NO_KEYS = {
    *("bigquery", "cabundle", "catalog", "cert", "client", "client_credentials", "client_id", "client_secret"),
    *("custom", "dynamodb", "glue", "grant_type", "hive", "iceberg", "in-memory", "key", "location", "manifest"),
    *("metadata", "metadata_location", "previous_metadata_location", "rest", "server", "sql", "table", "table_type"),
    *("vended-credentials", "view", "counts", "doc", "element", "full", "none", "truncate", "uncompressed", "value"),
}
_KEY = re.compile(r"[a-z][a-z0-9_]*(?:[.-][a-z0-9_]+)*|DEFAULT_[A-Z]+")


def keys_in_pyiceberg() -> set[str]:
    """Strings that look like property keys in the modules that read a REST catalog's properties."""
    root = Path(pyiceberg.__file__).parent
    found: set[str] = set()
    for path in (*root.glob("io/*.py"), root / "catalog" / "__init__.py", *root.glob("catalog/rest/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
                found |= _text(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr in ("get", "pop", "setdefault") and "propert" in ast.unparse(node.func.value):
                    found |= _text(node.args[0])
            elif isinstance(node, ast.Subscript) and "propert" in ast.unparse(node.value):
                found |= _text(node.slice)
    return found


def _text(node: ast.AST) -> set[str]:
    is_key = isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEY.fullmatch(node.value)
    return {node.value} if is_key else set()  # type: ignore[attr-defined]


def test_every_property_key_of_pyiceberg_is_in_a_list() -> None:
    listed_keys = ADMITTED | DANGEROUS | HARMLESS | NO_KEYS
    assert keys_in_pyiceberg() - listed_keys == set()
    assert listed_keys - keys_in_pyiceberg() == set()
    assert ADMITTED | {"s3.session-token-expires-at-ms", "s3.path-style-access"} == {
        *server_settings._FOR_CONNECTION,
        *server_settings._FOR_FILES,
    }


@pytest.mark.parametrize("key", sorted(DANGEROUS | HARMLESS))
def test_settings_that_are_not_admitted_are_dropped_and_reported_once(
    server: HostileRest, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    value: Any = {"type": "basic", "basic": {}} if key in ("auth", "ssl") else "subprocess.Popen"
    server.send_everywhere({key: value})
    if not isinstance(value, str):
        server.credentials = []  # the specification allows only text there
    catalog = server.open(**OURS)
    for _ in range(2):
        files = files_of(catalog)
    ours = {**OURS, "warehouse": server.inner.id.warehouse}
    assert files.get(key) == ours.get(key)
    client = catalog._client.properties  # type: ignore[attr-defined]
    assert client.get(key) == {**ours, "type": "rest", "rest.sigv4.max-retries": "2"}.get(key)
    warnings = [line for line in warnings_in(caplog) if f" {key}=" in line]
    assert len(warnings) == (0 if key == "warehouse" else 1)  # our warehouse is only sent to the server


def test_a_file_io_from_the_server_is_not_loaded(server: HostileRest, tmp_path: Path) -> None:
    command = f"touch {tmp_path}/ran"
    server.send_everywhere({"py-io-impl": "subprocess.Popen", "args": command, "shell": "true"})
    loaded = server.open().load(NAME)
    storage, path = Storage(loaded.io_properties), f"{loaded.metadata.location}/a"
    storage.write(path, b"x")
    assert (storage.read(path), (tmp_path / "ran").exists()) == (b"x", False)


def test_an_auth_manager_from_the_server_is_not_loaded(server: HostileRest, tmp_path: Path) -> None:
    custom = {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": ["touch", f"{tmp_path}/ran"]}}
    server.defaults = server.overrides = server.config = {"auth": custom}
    files_of(server.open())
    assert not (tmp_path / "ran").exists()


def test_a_client_secret_is_not_sent_to_an_address_from_the_server(server: HostileRest, elsewhere: HostileRest) -> None:
    server.send_everywhere({"oauth2-server-uri": f"{elsewhere.url}/v1/oauth/tokens", "uri": elsewhere.url})
    login = {"credential": "id:the-client-secret", "oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}
    files_of(server.open(**login))
    assert elsewhere.paths == []
    assert server.paths.count("POST /v1/oauth/tokens") == 2  # one for each session


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("start", ["/v1/config", "/v1/namespaces", "/v1/oauth"])
def test_no_request_follows_a_redirect_to_another_origin(
    server: HostileRest, elsewhere: HostileRest, signs: bool, start: str
) -> None:
    properties = {
        "credential": "id:the-client-secret",
        "oauth2-server-uri": f"{server.url}/v1/oauth/tokens",
        "header.X-Api-Key": "key-of-the-operator",
        **({"rest.sigv4-enabled": "true", "client.region": "eu-west-1"} if signs else {}),
    }
    for status in (301, 302, 303, 307, 308):
        server.leads[start] = status, f"{elsewhere.url}/v1/namespaces/ns/tables/t"
        with pytest.raises(
            StorageError, match=rf"a redirect leads to another server, '{elsewhere.url}.*correct its uri"
        ):
            files_of(server.open(**properties))
    assert elsewhere.paths == []


def test_a_redirected_commit_has_an_unknown_outcome(server: HostileRest, elsewhere: HostileRest) -> None:
    catalog = server.open()
    base = catalog.load(NAME)
    server.leads["/v1/namespaces"] = 307, f"{elsewhere.url}/v1/namespaces/ns/tables/t"
    with pytest.raises(CommitStateUnknown, match="answered with a redirect"):
        catalog.commit(base, [], [{"action": "set-properties", "updates": {"a": "b"}}])
    assert elsewhere.paths == []


@pytest.mark.parametrize(
    "address",
    ["//{there}/v1/config", "http://{here}@{there}/", "http://{there}\\@{here}/", "https://{here}/x", "ftp://x"],
)
def test_a_redirect_to_an_ambiguous_address_is_not_followed(
    server: HostileRest, elsewhere: HostileRest, address: str
) -> None:
    here, there = (item.url.removeprefix("http://") for item in (server, elsewhere))
    server.leads["/v1/config"] = 302, address.format(here=here, there=there)
    with pytest.raises(StorageError, match="a redirect leads to another server"):
        server.open()
    assert elsewhere.paths == []


def test_a_redirect_within_the_origin_is_followed(server: HostileRest) -> None:
    catalog = server.open()
    server.leads["/v1/namespaces/old"] = 301, f"{server.url}/v1/namespaces/ns/tables/t"
    assert catalog.load(TableName(("old",), "t")).io_properties is not None


def test_cookies_are_not_kept(server: HostileRest) -> None:
    files_of(server.open())
    assert [headers.get("cookie") for headers in server.seen_headers] == [None, None]


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        ({"uri": "{url}/other/", "prefix": "a%7Cb"}, "/other/v1/a%7Cb/namespaces/a%1Fb/tables/t"),
        ({"namespace-separator": "%2E"}, "/v1/namespaces/a.b/tables/t"),
        ({"namespace-separator": ""}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"namespace-separator": "/../"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"namespace-separator": "%2F"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"prefix": "../../admin?x="}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"prefix": "a/%2e%2E/b"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"prefix": "a#"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"prefix": ["a"]}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"uri": "http://127.0.0.1:1/"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"uri": "https{rest}"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"uri": "http://user@{rest}"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"uri": "{url}\\@127.0.0.1:1/"}, "/v1/namespaces/a%1Fb/tables/t"),
        ({"uri": None}, "/v1/namespaces/a%1Fb/tables/t"),
    ],
)
def test_a_server_may_change_its_path_prefix_and_separator_only(
    server: HostileRest, sent: Mapping[str, Any], path: str
) -> None:
    rest = server.url.removeprefix("http")
    server.defaults = server.overrides = {
        key: value.format(url=server.url, rest=rest) if isinstance(value, str) else value for key, value in sent.items()
    }
    with pytest.raises(PolicyError):  # the table does not exist
        server.open().load(TableName(("a", "b"), "t"))
    assert f"GET {path}" in server.paths


@pytest.mark.parametrize(
    ("uri", "sent", "by"),
    [
        ("http://h/iceberg", {"nessie.is-nessie-catalog": "true"}, "Nessie"),
        ("http://h/iceberg/main", {"nessie.core-base-uri": "http://h/api/"}, "Nessie"),
        ("https://h/iceberg/api", {}, "lakeFS"),
        ("https://h/iceberg/api/", {}, "lakeFS"),
        ("https://h/mds/iceberg/api", {}, "lakeFS"),
        ("https://h/iceberg/relative_to/repo.main/api", {}, "lakeFS"),
        ("https://h/api/catalog", {}, ""),
        ("https://h/iceberg/api/v2", {"is-nessie-catalog": "true"}, ""),
    ],
)
def test_a_server_with_branches_is_recognised(uri: str, sent: Mapping[str, str], by: str) -> None:
    for defaults, overrides in ((sent, {}), ({}, sent)):
        assert server_settings.server_settings({"uri": uri}, defaults, overrides).versioned_by == by


def test_a_malformed_configuration_is_a_named_error(server: HostileRest) -> None:
    for defaults in ("text", ["a"], 7):
        server.defaults = defaults
        with pytest.raises(StorageError, match="is not an Iceberg REST catalog"):
            server.open()
    server.defaults, server.overrides, server.endpoints = None, None, ["SPEAK /v1/x"]
    with pytest.raises(StorageError, match="is not an Iceberg REST catalog"):
        server.open()
    server.endpoints = ["GET http://169.254.169.254/latest"]
    with pytest.raises(StorageError, match="Server does not support endpoint"):
        list(server.open().list_tables())
    server.endpoints = None
    server.config = {"s3.region": 7, "s3.endpoint": None, "s3.access-key-id": ["x"], "s3.path-style-access": True}
    assert files_of(server.open(**OURS)).items() >= OURS.items()


def test_ignored_settings_are_reported_masked_and_escaped(
    server: HostileRest, caplog: pytest.LogCaptureFixture
) -> None:
    server.config = {
        "py-io-impl": "evil\x1b[2J\nerror: all tables lost \u202e",
        "header.X\x1b": "a-secret-of-theirs",
        "adls.account-key": "QWNjb3VudEtleQ==",
        "auth": {"type": "custom", "nested": ["secret-in-a-list"]},
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.refresh-credentials-endpoint": "v1/credentials",
    }
    catalog = server.open()
    caplog.set_level(logging.INFO, logger=server_settings.__name__)
    for _ in range(3):
        files_of(catalog)
        files_of(server.open())
    assert warnings_in(caplog) == [
        f"catalog scripted at {server.url} sends settings that a server may not set; they are ignored: "
        "adls.account-key=***, auth=***, header.X\\u001b=***, "
        "py-io-impl=evil\\u001b[2J\\nerror: all tables lost \\u202e; "
        "set the settings that you want in the catalog's own configuration"
    ]
    assert [item.levelname for item in caplog.records if " io-impl=***" in item.getMessage()] == ["INFO"]


def test_remote_signing_offered_beside_keys_gives_no_warning(
    server: HostileRest, caplog: pytest.LogCaptureFixture
) -> None:
    """Lakekeeper and Nessie send these settings with each table."""
    server.defaults = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO", "s3.signer": "S3V4RestSigner"}
    signer = {"s3.signer.endpoint": "v1/w/sign", "s3.signer.uri": server.url, "s3.remote-signing-enabled": "true"}
    server.config = {**VENDED, **server.defaults, **signer}
    caplog.set_level(logging.INFO, logger=server_settings.__name__)
    assert files_of(server.open()).items() >= VENDED.items()
    assert warnings_in(caplog) == []
    assert " s3.signer.uri=" in caplog.text


def test_a_command_warns_of_ignored_settings_unless_its_log_level_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger(server_settings.__name__)
    before = log.level
    try:
        for setting, level in (("ERROR", logging.NOTSET), (None, logging.WARNING)):
            log.setLevel(logging.NOTSET)
            monkeypatch.delenv("ICEKEEPER_LOG", raising=False)
            if setting is not None:
                monkeypatch.setenv("ICEKEEPER_LOG", setting)
            assert main(["--version"]) == 0
            assert log.level == level
    finally:
        log.setLevel(before)


def test_a_flood_of_settings_is_reported_in_few_lines(server: HostileRest, caplog: pytest.LogCaptureFixture) -> None:
    catalog = server.open()
    for n in range(5):
        server.config = {f"header.x-{n}-{i}": "x" for i in range(50)}
        files_of(catalog)
    assert sum(line.count("=x") for line in warnings_in(caplog)) == 64


# -- endpoints, and the keys that are sent to them


@pytest.mark.parametrize("where", ["overrides", "defaults", "config", "credentials"])
@pytest.mark.parametrize("own", [{}, OURS, {"s3.endpoint": "http://127.0.0.1:9000", **OURS}])
def test_our_keys_are_not_sent_to_an_endpoint_from_the_server(
    server: HostileRest, where: str, own: Mapping[str, str]
) -> None:
    halves: list[dict[str, str]] = [{key: "HALF"} for key in (*PAIR, "s3.session-token")]
    for beside in ({}, *halves):
        sent = {"s3.endpoint": "http://127.0.0.1:1", **beside}
        setattr(server, where, [{"prefix": "", "config": sent}] if where == "credentials" else sent)
        catalog = server.open(**own)
        if where == "defaults" and "s3.endpoint" in own:
            assert files_of(catalog)["s3.endpoint"] == "http://127.0.0.1:9000"
            continue
        with pytest.raises(StorageError) as refused:
            files_of(catalog)
        assert str(refused.value) == (
            'ns.t: catalog scripted names the endpoint "http://127.0.0.1:1" for its files and vends no keys for it; '
            "your own keys are not sent there: if the endpoint is yours, set s3.endpoint to it in the catalog's "
            "configuration"
        )


def test_an_endpoint_from_the_server_gets_only_vended_keys(
    server: HostileRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.overrides = {"s3.endpoint": "http://127.0.0.1:1/path"}
    server.config = {**VENDED, "s3.access-key-id": "EARLIER"}
    server.credentials = [{"prefix": "file:", "config": PAIR}]
    found = files_of(server.open(**OURS, **{"s3.profile-name": "ours"}))
    assert identity_in(found).secret_key == PAIR["s3.secret-access-key"]
    assert {key for key, value in found.items() if value in OURS.values()} == {"s3.region"}
    # Nor parts of other vended keys.
    assert (identity_in(found).session_token, identity_in(found).role_arn) == (None, None)
    assert found["s3.endpoint"] == "http://127.0.0.1:1/path"
    monkeypatch.setenv("ICEKEEPER_WORKER_CREDENTIALS", "driver")
    assert Storage(found).__reduce__()[1][0] == dict(found)  # as in workers


@pytest.mark.parametrize("variable", [None, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_our_endpoint_in_another_spelling_keeps_our_spelling(
    server: HostileRest, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = "https://Store.example:8443"
    own = {"s3.endpoint": ours} if variable is None else {}
    if variable is not None:
        monkeypatch.setenv(variable, ours)
    server.config = {"s3.endpoint": "http://store.EXAMPLE:8443/", "s3.region": "us-west-2"}
    found = files_of(server.open(**own))
    assert (found["s3.endpoint"], found["s3.region"]) == (ours, "us-west-2")
    if variable is not None:
        monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
        with pytest.raises(StorageError, match=r"set s3\.endpoint"):
            files_of(server.open())


@pytest.mark.parametrize(
    "value", ["", "\n", "eu-west-1.evil.example/#", "evil.example", "127.0.0.1:80/", "x" * 64, "1"]
)
def test_a_region_that_is_a_host_is_ignored(server: HostileRest, value: str) -> None:
    server.config = {"s3.region": value, "client.region": value}
    assert "client.region" not in files_of(server.open(**OURS))
    assert files_of(server.open(**OURS))["s3.region"] == "eu-west-1"
    assert "s3.region" not in files_of(server.open())


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "169.254.0.1", "169.254.169.254.", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376"),
        *(
            "169.254.43518",
            "0xa9.254.0251.254",
            "[fe80::1]",
            "[febf::1]",
            "[fd00:ec2::254]",
            "[::ffff:169.254.169.254]",
        ),
        *("[::ffff:a9fe:a9fe]", "[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]"),
        *("metadata.example", "100.100.100.200"),
    ],
)
def test_a_link_local_endpoint_is_never_used(server: HostileRest, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def answer(name: str, *args: Any, **more: Any) -> Any:
        return look_up("169.254.169.254" if name == "metadata.example" else name, *args, **more)

    monkeypatch.setattr("socket.getaddrinfo", answer)
    server.config = {**VENDED, "s3.endpoint": f"http://{host}/"}
    with pytest.raises(StorageError, match=r"a link-local address and therefore never used: correct s3\.endpoint"):
        files_of(server.open())


@pytest.mark.parametrize(
    "endpoint",
    [
        *(
            "http://a@127.0.0.1:1",
            "http://127.0.0.1:1\\@x",
            "http://127.0.0.1:1?x",
            "http://127.0.0.1:1/#",
            "file:///etc",
        ),
        *("127.0.0.1:1", "http://[fe80::1%25lo]", "http://127.0.0.1:1/../x", "http://①27.0.0.1", "javascript:x"),
    ],
)
def test_only_a_plain_http_address_is_an_endpoint(server: HostileRest, endpoint: str) -> None:
    server.config = {**VENDED, "s3.endpoint": endpoint}
    if endpoint.isascii():
        with pytest.raises(StorageError, match=r"which is not a valid address: correct s3\.endpoint"):
            files_of(server.open())
    else:
        assert "s3.endpoint" not in files_of(server.open())


def test_vended_keys_are_renewed_only_by_vended_keys(server: HostileRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise our keys would be sent to the endpoint that came with the first vended keys."""
    now_ms = [int(VENDED["s3.session-token-expires-at-ms"]) - 400_000]
    monkeypatch.setattr("icekeeper.aws.settings.system_clock", lambda: now_ms[0])
    own = {**OURS, "s3.session-token": "our-own-session-token"}
    server.config = {**VENDED, "s3.session-token": "their-token-of-this-test", "s3.endpoint": "http://127.0.0.1:1"}
    found = files_of(server.open(**own))
    server.config = {"s3.session-token-expires-at-ms": "4102444900000"}
    now_ms[0] += 500_000
    with pytest.raises(StorageError, match="it no longer vends keys"):
        current_properties(found)
    server.config = {**VENDED, "s3.access-key-id": "LATER", "s3.endpoint": "http://127.0.0.1:2"}
    now = current_properties(found)
    assert (now["s3.access-key-id"], now["s3.endpoint"]) == ("LATER", "http://127.0.0.1:1")


# -- remote signing


@pytest.mark.parametrize("sent", [{"s3.remote-signing-enabled": "true"}, {"s3.signer.uri": "http://127.0.0.1:1/"}])
def test_remote_signing_without_keys_is_a_named_error(server: HostileRest, sent: Mapping[str, str]) -> None:
    server.config = sent
    settings = server_settings.ServerSettings({}, {}, {}, {})
    with pytest.raises(StorageError, match=r"\(remote signing\), which is not supported: .* s3\.access-key-id"):
        server_settings.file_settings("ns.t: catalog c", {}, settings, (sent,), in_s3=True)
    assert files_of(server.open()) is not None  # a local table needs no keys
    for own in ({"client.profile-name": "ours"}, {"s3.anonymous": "true"}, OURS):
        _, vended, _ = server_settings.file_settings("ns.t", own, settings, (sent,), in_s3=True)
        assert vended == {}
    _, vended, _ = server_settings.file_settings("ns.t", {}, settings, ({**sent, **PAIR},), in_s3=True)
    assert vended == PAIR
