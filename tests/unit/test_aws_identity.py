"""Identity and region of AWS requests from properties, and the errors if they are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.credentials import CredentialResolver

from icekeeper.aws.session import aws_session, session_of
from icekeeper.aws.settings import AwsIdentity, identity_in, region_of
from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.catalogs.configured import ConfiguredCatalog
from icekeeper.catalogs.load import connect
from icekeeper.cli import passes as request_command
from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.pipeline import glue_job
from icekeeper.pipeline.deployment import find_table_buckets
from icekeeper.pipeline.executions import StateMachine
from icekeeper.storage.file_systems import arrow_file_io, current_keys
from local_stack.credential_server import KEY_VARIABLES

ROLE = "arn:aws:iam::123456789012:role/r"
CLIENT_KEYS = {"client.access-key-id": "AKIACLIENT", "client.secret-access-key": "client-secret"}
S3_KEYS = {"s3.access-key-id": "AKIAFILES", "s3.secret-access-key": "files-secret"}


@pytest.fixture(autouse=True)
def aws_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An AWS configuration with only one profile, in place of the developer's."""
    for name in (*KEY_VARIABLES, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config"
    config.write_text("[profile far]\nregion = eu-south-2\naws_access_key_id = AKIAFAR\naws_secret_access_key = far\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return config


@pytest.mark.parametrize(
    ("properties", "prefixes", "identity"),
    [
        ({}, ("s3", "client"), AwsIdentity()),
        (
            {"client.profile-name": "a", "s3.profile-name": "b", "client.role-session-name": "n"},
            ("s3", "client"),
            AwsIdentity(profile="b", role_session_name="n"),
        ),
        ({"client.profile-name": "a", "s3.profile-name": "b"}, ("glue", "client"), AwsIdentity(profile="a")),
        # Files: a role is assumed only without keys.
        (
            {**CLIENT_KEYS, "client.role-arn": ROLE, "client.session-token": "t"},
            ("s3", "client"),
            AwsIdentity(access_key="AKIACLIENT", secret_key="client-secret", session_token="t"),
        ),
        ({"s3.role-arn": ROLE}, ("s3", "client"), AwsIdentity(role_arn=ROLE)),
        # Catalogs: a role is assumed with the keys.
        (
            {**CLIENT_KEYS, "client.role-arn": ROLE},
            ("glue", "client"),
            AwsIdentity(access_key="AKIACLIENT", secret_key="client-secret", role_arn=ROLE),
        ),
    ],
)
def test_an_identity_is_read_as_pyiceberg_reads_it(
    properties: dict[str, str], prefixes: tuple[str, ...], identity: AwsIdentity
) -> None:
    assert identity_in(properties, prefixes) == identity


@pytest.mark.parametrize(
    ("properties", "environment", "region"),
    [
        ({"s3.region": "a", "client.region": "b"}, {"AWS_REGION": "c"}, "a"),
        ({"client.region": "b"}, {"AWS_REGION": "c"}, "b"),
        ({"client.profile-name": "far"}, {"AWS_REGION": "c"}, "c"),
        ({"client.profile-name": "far"}, {}, "eu-south-2"),
        ({}, {"AWS_PROFILE": "far"}, "eu-south-2"),
        ({"s3.endpoint": "http://127.0.0.1:9", "client.profile-name": "far"}, {}, "us-east-1"),
        ({}, {}, None),
    ],
)
def test_the_region_comes_from_properties_or_the_aws_configuration(
    properties: dict[str, str], environment: dict[str, str], region: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert aws_session(properties).region_name == region
    keys = current_keys(properties)
    if region is not None:  # without a region, S3 is queried
        assert arrow_file_io(properties, keys).properties.get("s3.region") == (
            region if keys else region_of(properties)
        )


def test_arrow_gets_keys_in_place_of_profiles_and_roles(aws_config: Path) -> None:
    properties = {"client.profile-name": "far", "client.role-session-name": "n", "s3.region": "a"}
    keys = current_keys(properties)
    assert keys is not None
    assert tuple(keys) == ("AKIAFAR", "far", None)
    assert "far" not in repr(keys)
    made = arrow_file_io({**properties, "s3.role-arn": ROLE}, keys).properties
    assert {key: value for key, value in made.items() if "key" in key or "role" in key or "token" in key} == {
        "s3.access-key-id": "AKIAFAR",
        "s3.secret-access-key": "far",
        "s3.session-token": "",
    }
    for own in (S3_KEYS, CLIENT_KEYS, {"s3.anonymous": "true"}):
        assert current_keys({**properties, **own}) is None


def test_sessions_are_shared_by_identity_region_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    first = session_of(AwsIdentity(profile="far"), "a")
    assert session_of(AwsIdentity(profile="far"), "a") is first
    assert session_of(AwsIdentity(profile="far"), "b") is not first
    monkeypatch.setenv("AWS_CA_BUNDLE", "/elsewhere")
    assert session_of(AwsIdentity(profile="far"), "a") is not first


def test_keys_in_a_changed_file_are_read_after_five_minutes(aws_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties, now_s = {"client.profile-name": "far"}, 1000.0
    monkeypatch.setattr("icekeeper.aws.session.steady_s", lambda: now_s)
    assert current_keys(properties) == ("AKIAFAR", "far", None)
    aws_config.write_text(aws_config.read_text().replace("AKIAFAR", "AKIANEW"))
    assert current_keys(properties) == ("AKIAFAR", "far", None)
    now_s += 301
    assert current_keys(properties) == ("AKIANEW", "far", None)


def test_a_source_without_keys_is_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[object] = []
    monkeypatch.setattr(CredentialResolver, "load_credentials", lambda self: queries.append(self))
    properties = {"s3.region": "of-this-test"}
    assert [current_keys(properties) for _ in range(3)] == [None] * 3
    assert len(queries) == 1  # without a metadata service each query takes seconds


NEED_REGION: dict[str, Callable[[], object]] = {
    "the Glue Data Catalog": lambda: connect(ConfiguredCatalog.of("lake", {"type": "glue"})),
    "S3 Tables": lambda: list(find_table_buckets()),
}


@pytest.mark.parametrize("title", NEED_REGION)
def test_a_missing_region_is_an_error_with_the_settings_to_use(title: str) -> None:
    with pytest.raises(MaintenanceError) as caught:
        NEED_REGION[title]()
    service = "glue" if "Glue" in title else "s3tables"
    assert type(caught.value) is PolicyError  # as for other configuration mistakes
    assert str(caught.value) == (
        f"the region of {title} is not set: set {service}.region or client.region of the catalog, AWS_REGION, or the"
        " region of the AWS profile"
    )


def test_a_job_uses_the_region_of_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "")  # restored after the test
    monkeypatch.delenv("AWS_REGION")
    for state, region in (("dynamodb://table", None), ("dynamodb://table?region=eu-west-3", "eu-west-3")):
        glue_job._use_region_of(state)
        assert region_of({}) == region
    glue_job._use_region_of("dynamodb://table?region=other")
    assert region_of({}) == "eu-west-3"


def test_workers_get_keys_only_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"client.profile-name": "far", "s3.endpoint": "http://127.0.0.1:9"}
    assert properties_for_workers(properties) == properties
    monkeypatch.setenv("ICEKEEPER_WORKER_CREDENTIALS", "driver")
    handed = {"s3.access-key-id": "AKIAFAR", "s3.secret-access-key": "far", "s3.session-token": ""}
    assert properties_for_workers(properties) == {
        "s3.endpoint": "http://127.0.0.1:9",
        "s3.region": "us-east-1",
        **handed,
    }
    for own in (S3_KEYS, {"s3.anonymous": "true"}):
        assert properties_for_workers({**properties, **own}) == {**properties, **own}
    with pytest.raises(
        StorageError, match=r"=driver needs keys to send, but there are none: The config profile \(nobody\)"
    ):
        properties_for_workers({"client.profile-name": "nobody"})
    monkeypatch.setenv("ICEKEEPER_WORKER_CREDENTIALS", "both")
    with pytest.raises(PolicyError, match="ICEKEEPER_WORKER_CREDENTIALS is 'both'; set it to own or driver"):
        properties_for_workers(properties)


def test_the_state_machine_client_uses_the_profile_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    arn = "arn:aws:states:eu-west-1:123456789012:stateMachine:m"
    for state, key in (("dynamodb://table?profile=far", "AKIAFAR"), ("/a/file", None)):
        monkeypatch.setenv("ICEKEEPER_STATE", state)
        client = StateMachine.open(arn, request_command._profile())._client
        credentials = client._request_signer._credentials
        assert (credentials.access_key if credentials else None) == key
        assert client.meta.region_name == "eu-west-1"
