"""REST catalogs: raw JSON through PyIceberg's authenticated session (SigV4, OAuth, tokens), so that no field is lost.

The server checks the *requirements* of a commit, not the state on which the commit is based.  So everything that must
not have changed since then needs a requirement (rule: swap-pointers-conditionally).
Source: the Iceberg REST catalog specification, ``rest-catalog-open-api.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyiceberg.exceptions
import requests
from botocore.exceptions import BotoCoreError
from pydantic import ValidationError
from pyiceberg.catalog import BOTOCORE_SESSION
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

from icekeeper.aws.session import aws_session
from icekeeper.aws.settings import remember_vendor
from icekeeper.catalogs.bucket_maintenance import maintenance_behind
from icekeeper.catalogs.catalog import LoadedTable, missing_table
from icekeeper.catalogs.commit_answer import CommitAnswer, answer_of_rest, error_of, read_error
from icekeeper.catalogs.configured import ConfiguredCatalog, file_io_properties
from icekeeper.catalogs.server_settings import Sent, ServerSettings, file_settings, log_ignored, server_settings
from icekeeper.errors import CommitStateUnknown, MetadataUnreadable, PartlyListed, PolicyError, StorageError
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import require_shape
from icekeeper.metadata.updates import same_table
from icekeeper.model import TableName
from icekeeper.pyiceberg_private.rest_session import (
    BoundedRestCatalog,
    RedirectRefused,
    SecondAttemptFailed,
    rest_credentials,
    rest_request,
)
from icekeeper.storage.paths import S3_SCHEMES, split_path
from icekeeper.text import address_to_show, mask, remember_secrets

# NotImplementedError: the server does not offer an endpoint.
REST_ERRORS = (pyiceberg.exceptions.RESTError, pyiceberg.exceptions.OAuthError, NotImplementedError)
# Raised while PyIceberg sends requests and parses answers, which may not come from a catalog.
LISTING_ERRORS = (requests.RequestException, *REST_ERRORS, pyiceberg.exceptions.NoSuchNamespaceError, ValidationError)
# More than any catalog has, because the listing of a hostile server may never end.
_MOST_NAMESPACES, _MOST_LEVELS = 100_000, 64
# Errors that concern a single namespace; the other namespaces can still be listed.
OF_ONE_NAMESPACE = (
    pyiceberg.exceptions.ServerError,
    pyiceberg.exceptions.ForbiddenError,
    pyiceberg.exceptions.BadRequestError,
    pyiceberg.exceptions.NoSuchNamespaceError,
    ValidationError,
)
# Raised before a request is sent: there is no token, or no credentials to sign it with.
NEVER_SENT = (*REST_ERRORS, BotoCoreError)


class RestCatalog:
    """A catalog that speaks the Iceberg REST protocol."""

    def __init__(self, configured: ConfiguredCatalog) -> None:
        """Connect and fetch the server's configuration.

        Raises:
            PolicyError: PyIceberg does not accept the properties.
            StorageError: the server cannot be reached, refuses the credentials, or is not a REST catalog.
        """
        self.id = configured.id
        self._configured = configured
        self._server = ServerSettings({}, {}, {}, {})
        self._uri = address_to_show(str(configured.properties["uri"]))
        try:
            properties = {**configured.properties, **self._signing()}
            self._client = BoundedRestCatalog(self.id.name, self._admit, properties)
        except (BotoCoreError, *LISTING_ERRORS) as error:
            raise self._unusable(error) from error
        except ValueError as error:
            raise PolicyError(f"catalog {self.id}: {self._masked(str(error))}") from error
        self.built_in_maintenance = maintenance_behind(configured.texts)

    def list_tables(self) -> Iterator[TableName]:
        pending, seen = self._children(()), set[tuple[str, ...]]()
        hidden: dict[tuple[str, ...], Exception] = {}
        unparented: dict[tuple[str, ...], Exception] = {}
        below = has_parents = False
        while pending:
            namespace = pending.pop(0)
            if namespace in seen:
                continue  # SeaweedFS also lists nested namespaces at the top
            seen.add(namespace)
            if len(seen) > _MOST_NAMESPACES or len(namespace) > _MOST_LEVELS:
                raise StorageError(
                    f"catalog {self.id} at {self._uri} cannot be listed: it has more than {_MOST_NAMESPACES:,} "
                    f"namespaces, or namespaces with more than {_MOST_LEVELS} levels"
                )
            try:
                tables = self._client.list_tables(namespace)
            except LISTING_ERRORS as error:
                if self._is_dropped(namespace, error):
                    continue
                if not isinstance(error, OF_ONE_NAMESPACE):
                    raise self._unusable(error) from error
                hidden[namespace], tables = error, []
            yield from (TableName(tuple(table[:-1]), table[-1]) for table in tables if len(table) > 1)
            try:
                pending = [*self._children(namespace), *pending]
                has_parents = True
            except StorageError as error:
                why = error.__cause__
                if isinstance(why, pyiceberg.exceptions.BadRequestError):
                    unparented[namespace] = why
                elif not (isinstance(why, Exception) and self._is_dropped(namespace, why)):
                    if not isinstance(why, OF_ONE_NAMESPACE):
                        raise
                    hidden.setdefault(namespace, why)
                    below = True
        if has_parents and unparented:  # a server without nested namespaces answers 400 for all of them
            hidden, below = {**unparented, **hidden}, True
        if hidden and hidden.keys() == seen:
            why = next(iter(hidden.values()))
            raise self._unusable(why) from why
        if hidden:
            first, why = next(iter(hidden.items()))
            raise PartlyListed(
                f"catalog {self.id}: the tables of {len(hidden)} namespace(s) cannot be listed, for example "
                f"{'.'.join(first)}: {self._unusable(why)}; repair the server",
                hidden=() if below else tuple(hidden),
            )

    def load(self, table: TableName) -> LoadedTable:
        response = self._ask(table)
        try:
            answer = parsed_json(response.content, FileLimits(f"{table}: the answer of catalog {self.id}"))
        except ValueError:
            answer = None
        return self._loaded(table, answer)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        table = base.name
        checked = [*(same for same in same_table(base.metadata) if same not in requirements), *requirements]
        commit = {
            "identifier": {"namespace": list(table.namespace), "name": table.name},
            "requirements": checked,
            "updates": list(updates),
        }
        try:
            response = rest_request(self._client, "POST", namespace=table.namespace, table=table.name, json=commit)
        except (requests.RequestException, *NEVER_SENT) as error:
            if isinstance(error, NEVER_SENT) or _never_sent(error):
                raise self._unusable(error) from error
            did = "answered with a redirect" if isinstance(error, RedirectRefused) else "did not answer"
            raise error_of(CommitAnswer.UNKNOWN, table, f"catalog {self.id} {did}") from error
        body = _json(response)
        answer = answer_of_rest(response.status_code, read_error(body))
        if answer is CommitAnswer.LANDED:
            try:
                # The answer has no configuration, so the properties that were loaded with the base remain.
                return self._loaded(table, body, base.io_properties)
            except MetadataUnreadable as error:
                raise CommitStateUnknown(f"{error}; it is unknown whether the commit landed") from error
        words = f"catalog {self.id} answered HTTP {response.status_code} ({self._message(response)})"
        raise error_of(answer, table, words)

    def close(self) -> None:
        self._client.close()

    def _signing(self) -> Mapping[str, Any]:
        """The properties with which PyIceberg signs requests, with credentials that renew themselves.

        Raises:
            PolicyError: the region is not known.
            StorageError: there are no credentials.
            BotoCoreError: the source of credentials failed.
        """
        properties = self._configured.texts
        if properties.get("rest.sigv4-enabled", "").lower() != "true":
            return {}
        session = aws_session(properties, ("client",))
        if not session.has_credentials:
            raise StorageError(f"requests to catalog {self.id} must be signed, but no AWS credentials are configured")
        if session.region_name is None and not properties.get("rest.signing-region"):
            raise PolicyError(
                f"requests to catalog {self.id} must be signed, but no region is set: set rest.signing-region"
            )
        return {BOTOCORE_SESSION: session.botocore_session()}

    def _admit(self, defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, str]:
        """Keep the admitted part of the server's configuration; return its properties for requests."""
        self._server = server_settings(self._configured.texts, defaults, overrides)
        remember_secrets(self._server.connection)
        log_ignored(self.id.name, self._uri, self._server.ignored)
        return self._server.connection

    def _children(self, parent: tuple[str, ...]) -> list[tuple[str, ...]]:
        try:
            found = self._client.list_namespaces(parent)
        except LISTING_ERRORS as error:
            raise self._unusable(error) from error
        # A server without nested namespaces may ignore the parent and list the top level again.
        return [tuple(child) for child in found if len(child) > len(parent) and tuple(child[: len(parent)]) == parent]

    def _is_dropped(self, namespace: tuple[str, ...], error: Exception) -> bool:
        """Whether the catalog itself answered that the namespace does not exist, and later listings lack it."""
        answered = error.__cause__
        if not (isinstance(answered, requests.HTTPError) and _says_missing(answered.response)):
            return False
        try:  # the top level may list it, too
            return all(namespace not in self._children(parent) for parent in {namespace[:-1], ()})
        except StorageError:
            return False

    def _ask(self, table: TableName) -> requests.Response:
        try:
            response = rest_request(self._client, "GET", namespace=table.namespace, table=table.name)
        except (requests.RequestException, *NEVER_SENT) as error:
            raise self._unusable(error) from error
        if response.ok:
            return response
        if _says_missing(response):
            raise missing_table(self, table)
        if response.status_code == 404:
            raise StorageError(
                f"catalog {self.id} answered HTTP 404 for {table} without Iceberg's error document, so it is unknown "
                f"whether the table exists ({self._message(response)}); check the catalog's uri, and look for a proxy "
                "that answers in its place"
            )
        if response.status_code in (401, 403, 419):
            raise StorageError(f"catalog {self.id} denies access to {table}: {self._message(response)}")
        raise StorageError(
            f"catalog {self.id} answered HTTP {response.status_code} for {table}: {self._message(response)}"
        )

    def _loaded(self, table: TableName, answer: Any, io_properties: Mapping[str, str] | None = None) -> LoadedTable:
        try:
            document, location = answer["metadata"], answer["metadata-location"]
        except (KeyError, TypeError) as error:
            raise MetadataUnreadable(f"{table}: catalog {self.id} did not answer with table metadata") from error
        if not isinstance(document, dict) or not isinstance(location, str):
            raise MetadataUnreadable(f"{table}: catalog {self.id} answered without a metadata file")
        if io_properties is None:
            io_properties, vended, ignored = self._files(table, answer, location)
            log_ignored(self.id.name, self._uri, ignored, vends=bool(vended))
            remember_vendor(vended, lambda: self._vended(table))
        try:
            require_shape(document)
        except MetadataUnreadable as error:
            what = f"metadata file {location}, which is not valid Iceberg table metadata: {error}"
            raise MetadataUnreadable(f"{table}: catalog {self.id} answered with {what}") from None
        metadata = TableMetadata(document)
        bound = self._configured.bound_of(table, location)
        carried, by = bound.put_into(io_properties), self._server.versioned_by
        return LoadedTable(table, metadata, location, location, carried, versioned_by=by)

    def _files(
        self, table: TableName, answer: Mapping[str, Any], location: str
    ) -> tuple[dict[str, str], dict[str, str], Sent]:
        """See :func:`.file_settings`."""
        try:
            config = dict(answer.get("config") or {})
            vended = rest_credentials(answer.get("storage-credentials") or (), location)
        except (ValidationError, TypeError, ValueError, AttributeError) as error:
            raise MetadataUnreadable(
                f"{table}: catalog {self.id} answered with credentials or configuration that cannot be parsed"
            ) from error
        in_s3 = split_path(location).scheme in S3_SCHEMES
        what = f"{table}: catalog {self.id}"
        return file_settings(
            what, file_io_properties(self._configured.properties), self._server, (config, vended), in_s3=in_s3
        )

    def _vended(self, table: TableName) -> Mapping[str, str]:
        """The keys that the server now vends for a table, never the operator's own; raises what :meth:`load` raises."""
        response = self._ask(table)
        answer = _json(response)
        if not isinstance(answer, dict) or not isinstance(answer.get("metadata-location"), str):
            raise MetadataUnreadable(f"{table}: catalog {self.id} answered without a metadata file")
        _, vended, _ = self._files(table, answer, answer["metadata-location"])
        return vended

    def _message(self, response: requests.Response) -> str:
        error = read_error(_json(response))
        message = error.message if error is not None else response.text or str(response.reason)
        # Masked before it is cut: otherwise a part of a secret could remain at the end.
        masked = " ".join(self._masked(message).split())
        return masked[:2000] if error is not None else masked[:200]

    def _masked(self, text: str) -> str:
        """The text without secrets, which may be values of any type, even nested values."""
        return mask(text, self._configured.properties)

    def _unusable(self, error: Exception) -> StorageError:
        if isinstance(error, SecondAttemptFailed) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        if isinstance(error, ValidationError):
            return StorageError(
                f"the server at {self._uri} is not an Iceberg REST catalog; look for a proxy that answers in its place"
            )
        if isinstance(error, requests.Timeout):
            return StorageError(f"catalog {self.id} at {self._uri} does not answer in time")
        if isinstance(error, requests.ConnectionError):
            return StorageError(f"catalog {self.id} cannot be reached: nothing answers at {self._uri}")
        reason = " ".join(self._masked(str(error)).split())[:300]
        return StorageError(f"catalog {self.id} at {self._uri} cannot be used: {reason}")


def _says_missing(response: requests.Response | None) -> bool:
    """Whether the catalog itself says that the table or namespace does not exist: proxies also answer 404."""
    if response is None or response.status_code != 404:
        return False
    error = read_error(_json(response))
    return error is not None and error.code == 404


def _json(response: requests.Response) -> Any:
    """The decoded body; ``None`` if it is not JSON or exceeds the limits."""
    try:
        return parsed_json(response.content, FileLimits("an answer"))
    except (ValueError, MetadataUnreadable):
        return None


def _never_sent(error: Exception) -> bool:
    """Whether a request certainly failed before any byte of it was sent."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.args[0] if error.args else None
    if isinstance(cause, MaxRetryError):
        cause = cause.reason
    return isinstance(cause, NewConnectionError | ConnectTimeoutError)
