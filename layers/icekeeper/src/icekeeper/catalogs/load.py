"""Opens a catalog by its name in PyIceberg's configuration, or a table bucket by its ARN."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.configured import (
    CatalogKind,
    ConfiguredCatalog,
    TableBucketArn,
    kind_of,
    table_bucket_properties,
)
from icekeeper.errors import CatalogNotFound, PolicyError, StorageError
from icekeeper.model import CatalogId
from icekeeper.pyiceberg_private.configuration import configured_catalogs, merged
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.text import remember_secrets

_SECRET = "secretsmanager:"


def known_catalogs(catalog_file: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Properties by lower-case catalog name, from a catalog file; PyIceberg's own configuration takes precedence.

    Raises:
        PolicyError: PyIceberg's configuration is not valid.
    """
    try:
        return merged(catalog_file or {}, configured_catalogs())
    except ValueError as error:
        how = "; write each property on its own line, without braces" if "flow mapping" in str(error) else ""
        raise PolicyError(f"PyIceberg's configuration cannot be read: {error}{how}") from error


def open_catalog(
    name: str, properties: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Catalog:
    """Connect to the catalog ``name`` of PyIceberg's configuration; ``properties`` override configured properties.

    ``type: rest``, ``sql`` and ``glue`` are PyIceberg's own; ``type: s3tables`` with ``warehouse`` set to the ARN of a
    table bucket uses the S3 Tables API (also as ``py-catalog-impl: icekeeper.catalogs.s3tables.S3TablesCatalog``).

    The ARN of a table bucket in place of a name opens that bucket without any configuration.  If a configured catalog
    has that warehouse, its endpoints and credentials are used.  The catalog always gets the bucket's name.

    ``environment``, by default that of this process, contains the rules for where tables may have files.

    Raises:
        PolicyError: there is no such catalog, its type is not supported, or its properties are incomplete.
        StorageError: it cannot be reached.
    """
    return connect(configured_catalog(name, properties), environment)


def configured_catalog(name: str, properties: Mapping[str, str] | None = None) -> ConfiguredCatalog:
    """The configuration that :func:`open_catalog` connects to.

    Raises:
        PolicyError: there is no such catalog, or its type is not supported.
    """
    catalogs = known_catalogs()
    if name.startswith("arn:"):
        try:
            bucket = TableBucketArn.parse(name)
        except ValueError as error:
            raise PolicyError(f"the catalog is {error}") from error
        settings = merged(table_bucket_properties(bucket, catalogs), properties or {})
        return ConfiguredCatalog(bucket.name, kind_of(bucket.name, settings), settings)
    configured = catalogs.get(name.lower())
    if configured is None and not properties:
        known = ", ".join(sorted(catalogs)) or "none"
        raise CatalogNotFound(
            f"there is no catalog '{name}' (configured: {known}); add it to ~/.pyiceberg.yaml under 'catalog:' or set"
            f" PYICEBERG_CATALOG__{name.upper().replace('-', '_')}__URI and __TYPE"
        )
    settings = merged(configured or {}, properties or {})
    if configured is not None:
        return ConfiguredCatalog.of(name, settings)
    return ConfiguredCatalog(name, kind_of(name, settings), settings)


def served_catalog(recorded: CatalogId) -> Catalog | None:
    """Open the configured catalog of this name, or the table bucket whose ARN is its warehouse.

    ``None`` if there is no such catalog, or it now has another warehouse.

    Raises:
        PolicyError: its type is not supported, or its properties are incomplete.
        StorageError: it cannot be reached.
    """
    is_bucket = recorded.warehouse.startswith("arn:")
    if not is_bucket and recorded.name.lower() not in known_catalogs():
        return None
    catalog = open_catalog(recorded.warehouse if is_bucket else recorded.name)
    return catalog if catalog.id.warehouse == recorded.warehouse else None


def connect(configured: ConfiguredCatalog, environment: Mapping[str, str] | None = None) -> Catalog:
    """Connect to a catalog by its properties alone; ``environment`` as in :func:`open_catalog`.

    A value ``secretsmanager:ARN`` stands for that secret of AWS Secrets Manager (:func:`with_secrets`).

    Raises:
        PolicyError: its properties are incomplete, or the rules are malformed.
        StorageError: it cannot be reached, or a secret cannot be read.
    """
    rules = (os.environ if environment is None else environment).get(ALLOWED_PREFIXES, "")
    opened = replace(with_secrets(configured), rules=rules)
    remember_secrets(opened.properties)
    # Only one adapter is imported, because each imports libraries (SQLAlchemy alone takes a quarter of a second).
    if opened.kind is CatalogKind.S3_TABLES:
        from icekeeper.catalogs.s3tables import S3TablesCatalog

        return S3TablesCatalog(opened)
    if opened.kind is CatalogKind.GLUE:
        from icekeeper.catalogs.glue import GlueCatalog

        return GlueCatalog(opened)
    if not opened.properties.get("uri"):
        raise PolicyError(
            f"catalog {opened.name} has no uri; set it next to the catalog's type in PyIceberg's configuration"
        )
    if opened.kind is CatalogKind.SQL:
        from icekeeper.catalogs.sql import SqlCatalog

        return SqlCatalog(opened)
    from icekeeper.catalogs.rest import RestCatalog

    return RestCatalog(opened)


def with_secrets(configured: ConfiguredCatalog) -> ConfiguredCatalog:
    """The catalog, with references to secrets in its properties replaced by the secrets.

    They are read whenever a catalog is opened, with the process's own credentials and not with those of the catalog.

    Raises:
        PolicyError: the text after ``secretsmanager:`` is not the ARN of a secret, or the secret is not text.
        StorageError: a secret cannot be read.
    """
    named = {key: value for key, value in configured.texts.items() if value.startswith(_SECRET)}
    if not named:
        return configured
    read = {value: _read_secret(configured.name, key, value.removeprefix(_SECRET)) for key, value in named.items()}
    secrets = {key: read[value] for key, value in named.items()}
    return replace(configured, properties={**configured.properties, **secrets})


def _read_secret(name: str, key: str, arn: str) -> str:
    from botocore.exceptions import BotoCoreError, ClientError

    from icekeeper.aws.session import client_config, session_of
    from icekeeper.aws.settings import identity_in
    from icekeeper.storage.failures import describe_failure

    parts = arn.split(":")
    if parts[0] != "arn" or len(parts) != 7 or parts[2] != "secretsmanager" or parts[5] != "secret":
        raise PolicyError(f"catalog {name}: {key} must be {_SECRET} and the ARN of a secret of AWS Secrets Manager")
    try:
        client = session_of(identity_in({}), parts[3]).client("secretsmanager", config=client_config({}))
        secret = client.get_secret_value(SecretId=arn).get("SecretString")
    except (BotoCoreError, ClientError) as error:
        raise StorageError(f"catalog {name}: the secret {arn} of {key} {describe_failure(error, None)}") from error
    if not secret:
        raise PolicyError(f"catalog {name}: the secret {arn} of {key} is not text")
    return str(secret)
