"""boto3 sessions for PyIceberg's properties, shared by identity, with credentials that renew themselves.

Keys are requested once per identity, because all its users share a session.  boto3 itself renews the keys of a
machine's or container's role, of a profile that assumes a role or uses single sign-on, and of a credential process.
The keys of a role in the properties, and keys that a catalog vends, are renewed here.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar

import boto3
import botocore.loaders
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
    RefreshableCredentials,
)
from botocore.exceptions import CredentialRetrievalError
from botocore.utils import parse_timestamp

from icekeeper.aws.settings import (
    EARLY_S,
    FILES,
    S3_CONNECT_TIMEOUT,
    AwsIdentity,
    Vended,
    Vendor,
    identity_in,
    region_of,
    vendor_of,
)
from icekeeper.machine.clock import in_daemon_thread, steady_s, system_clock
from icekeeper.text import remember_secrets

Answer = TypeVar("Answer")

ANSWERS_IN_S = 120.0
"""Long enough for a person to type the code of a second factor."""


class Patience:
    """Waits for a source of credentials, with a time limit, and sends no second request while the first is unanswered.

    A credential process may hang, and botocore sets no limit for it.
    """

    def __init__(self) -> None:
        self._silent: Future[Any] | None = None

    def ask(self, ask: Callable[[], Answer], provider: str) -> Answer:
        """Call ``ask`` in its own thread, which is abandoned if it does not return.

        Raises:
            CredentialRetrievalError: it did not return within :data:`ANSWERS_IN_S` seconds.
        """
        if self._silent is not None and not self._silent.done():
            raise _silence(provider)
        answer = in_daemon_thread(ask, "credentials")
        try:
            return answer.result(ANSWERS_IN_S)
        except TimeoutError as error:
            if answer.done():  # the source itself raised it
                raise
            self._silent = answer
            raise _silence(provider) from error


def _silence(provider: str) -> CredentialRetrievalError:
    return CredentialRetrievalError(provider=provider, error_msg=f"it has not answered for {ANSWERS_IN_S:g} s")


_ROLE_SESSION_NAME = "icekeeper"
# This long before keys expire, work waits for new keys, or fails.
_LATE_S = 60.0


class Source(Protocol):
    """A session whose credentials other sessions use."""

    def source(self) -> Any:
        """botocore's credentials, or ``None``."""
        ...

    def client(self, service: str) -> Any:
        """A client that uses them."""
        ...


class AssumedRole(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    """The keys of a role that another identity assumes: on first use, and again before they expire."""

    METHOD = "assume-role"
    CANONICAL_NAME = "custom-icekeeper-assume-role"

    def __init__(self, source: Source, identity: AwsIdentity) -> None:
        super().__init__()
        self._source, self._identity = source, identity
        self._asking: Any = None

    def load(self) -> Any:
        """See botocore; ``None`` if the source has no credentials."""
        found = self._source.source()
        if found is None:
            return None
        fetcher = AssumeRoleCredentialFetcher(
            self._client,
            found,
            self._identity.role_arn,
            extra_args={"RoleSessionName": self._identity.role_session_name or _ROLE_SESSION_NAME},
        )
        return DeferredRefreshableCredentials(fetcher.fetch_credentials, self.METHOD)

    def _client(self, service: str, **_: Any) -> Any:
        """The client that assumes the role; botocore would make a new client each time, with the source's current
        keys."""
        if self._asking is None:
            self._asking = self._source.client(service)
        return self._asking


class SameAs(CredentialProvider):  # type: ignore[misc]  # as above
    """The credentials of another session."""

    METHOD = "same-as"
    CANONICAL_NAME = "custom-icekeeper-same-as"

    def __init__(self, other: Source) -> None:
        super().__init__()
        self._other = other

    def load(self) -> Any:
        return self._other.source()


class VendedKeys(CredentialProvider):  # type: ignore[misc]  # as above
    """The keys that a catalog vends for a table, renewed before they expire."""

    METHOD = "vended"
    CANONICAL_NAME = "custom-icekeeper-vended"

    def __init__(self, vendor: Vendor) -> None:
        super().__init__()
        self._vendor = vendor

    def load(self) -> Any:
        first = self._vendor.lasting()
        left_s = max(0.0, (first.expires_ms - system_clock()) / 1000)
        return RefreshableCredentials(
            first.access_key,
            first.secret_key,
            first.session_token,
            _moment(first.expires_ms),
            lambda: _as_botocore(self._vendor.renew()),
            self.METHOD,
            time_fetcher=lambda: _moment(system_clock()),
            # With botocore's own 15 and 10 minutes, keys with a shorter life would be renewed at each request.
            advisory_timeout=min(EARLY_S, left_s / 3),
            mandatory_timeout=min(_LATE_S, left_s / 6),
        )


def _as_botocore(vended: Vended) -> dict[str, str]:
    return {
        "access_key": vended.access_key,
        "secret_key": vended.secret_key,
        "token": vended.session_token,
        "expiry_time": _moment(vended.expires_ms).isoformat(),
    }


def _moment(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


def parsed_moment(text: str) -> datetime | None:
    """The time that an answer contains as text, in UTC if it has no zone; ``None`` if it is malformed.

    botocore would take a time without a zone for local time, and fail on a malformed time.
    """
    try:
        found: datetime = parse_timestamp(text)
    except (ValueError, OverflowError, RuntimeError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# More than the threads of a process send requests at once, so that no thread waits for a connection.
_MAX_CONNECTIONS = 64

# A process may run for weeks, and AWS's configuration files and the keys in them may be edited meanwhile.
_KEPT_S = 300.0
# A catalog may vend different keys for each table.
_MOST_KEPT = 64


class Keys(NamedTuple):
    """The current credentials; a later call may return others."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return f"Keys({self.access_key})"


class AwsSession:
    """An identity in a region; safe to share between threads."""

    def __init__(self, core: Any, **identity: str | None) -> None:
        """``core``: a botocore session that is not shared; ``identity``: arguments of :class:`boto3.Session`."""
        self._session = boto3.Session(botocore_session=core, **identity)
        places = core.get_component("data_loader").search_paths
        places[:] = dict.fromkeys(places)  # boto3 adds its own path with each session
        self._lock = threading.Lock()  # sessions are not thread-safe while they make clients (boto3, "Session")
        self._told: Keys | None = None
        self._has_none = False
        self._found: Any = None
        self._patience = Patience()

    @property
    def region_name(self) -> str | None:
        """The region; ``None`` if neither the properties nor AWS's own configuration name a region."""
        region: str | None = self._session.region_name
        return region

    @property
    def has_credentials(self) -> bool:
        """Whether there are credentials; raises what :meth:`source` raises."""
        return self.source() is not None

    def client(self, service: str, *, first_base: type | None = None, **options: Any) -> Any:
        """A client whose credentials renew themselves; its class has ``first_base`` before boto3's own base class.

        Raises:
            BotoCoreError: no region is known, or the source of credentials failed.
        """
        self.source()  # botocore itself would wait forever for credentials
        with self._lock:
            if first_base is not None:  # unique_id: it is registered once
                self._session.events.register(
                    f"creating-client-class.{service}",
                    lambda base_classes, **_: base_classes.insert(0, first_base),
                    unique_id=first_base.__name__,
                )
            made = self._session.client(service, **options)
        made.meta.events.register_first("before-sign", self._renew)
        return made

    def keys(self) -> Keys | None:
        """Credentials for a client that is not boto3's, renewed before they expire; ``None`` if there are none.

        Call this before each use of such a client: new keys need a new client.

        Raises:
            BotoCoreError, ClientError: they cannot be renewed.
        """
        credentials = self.source()
        if credentials is None:
            return None
        try:
            frozen = self._frozen(credentials)
        except RuntimeError as error:  # botocore's error for a source whose keys have already expired
            raise CredentialRetrievalError(provider=credentials.method, error_msg=str(error)) from error
        keys = Keys(frozen.access_key, frozen.secret_key, frozen.token or None)
        if keys != self._told:
            remember_secrets({"secret-access-key": keys.secret_key, "session-token": keys.token or ""})
            self._told = keys
        return keys

    def _frozen(self, credentials: Any) -> Any:
        """The current keys, renewed if they expire soon."""
        if not getattr(credentials, "refresh_needed", lambda: False)():
            return credentials.get_frozen_credentials()
        return self._patience.ask(credentials.get_frozen_credentials, str(credentials.method))

    def botocore_session(self) -> Any:
        """A new session with the same credentials and region, for a library that makes clients itself.

        It is not shared, because boto3 adds its methods to the clients again for each session over the same core.
        """
        core = _core()
        core.register_component("credential_provider", CredentialResolver([SameAs(self)]))
        core.set_config_variable("region", self.region_name)
        return core

    def _renew(self, signature_version: Any, **_: Any) -> None:
        """Renew the keys of a client before it signs, so that failures raise one kind of error."""
        if signature_version is not UNSIGNED:
            self.keys()

    def source(self) -> Any:
        """botocore's credentials, which renew themselves when they are used; ``None`` if there are none.

        Raises:
            BotoCoreError: the source of credentials failed.
        """
        with self._lock:
            if self._has_none:
                return None
            if self._found is None:
                self._found = self._patience.ask(self._session.get_credentials, "the configured source of credentials")
                self._has_none = self._found is None  # without a metadata service, another request takes seconds
            return self._found


def aws_session(properties: Mapping[str, str], prefixes: Sequence[str] = FILES) -> AwsSession:
    """The session for the credentials, profile, role and region of the properties; nothing is sent.

    Raises:
        BotoCoreError: there is no such profile.
    """
    return session_of(identity_in(properties, prefixes), region_of(properties, prefixes))


def session_of(identity: AwsIdentity, region: str | None) -> AwsSession:
    """The session of an identity; otherwise like :func:`aws_session`."""
    return _kept.get((identity, region, _surroundings()), partial(_new_session, identity, region))


class _Kept:
    """The newest sessions of this process, each with the time at which it was made."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[AwsSession, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], AwsSession]) -> AwsSession:
        with self._lock:
            found = self._entries.get(key)
            if found is None or steady_s() - found[1] > _KEPT_S:
                found = self._entries[key] = make(), steady_s()
            self._entries.move_to_end(key)
            if len(self._entries) > _MOST_KEPT:
                self._entries.popitem(last=False)
            return found[0]


_kept = _Kept()


def _surroundings() -> tuple[tuple[str, str], ...]:
    """The variables that AWS's SDKs read; functions in the same process may have different variables."""
    return tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_") or k in ("HOME", "USERPROFILE")))


def _new_session(identity: AwsIdentity, region: str | None) -> AwsSession:
    vendor = vendor_of(identity.session_token)
    if vendor is not None:
        core = _core()
        core.register_component("credential_provider", CredentialResolver([VendedKeys(vendor)]))
        return AwsSession(core, profile_name=identity.profile, region_name=region)
    source = AwsSession(
        _core(),
        profile_name=identity.profile,
        aws_access_key_id=identity.access_key,
        aws_secret_access_key=identity.secret_key,
        aws_session_token=identity.session_token,
        region_name=region,
    )
    if identity.role_arn is None:
        return source
    core = _core()
    core.register_component("credential_provider", CredentialResolver([AssumedRole(source, identity)]))
    return AwsSession(core, profile_name=identity.profile, region_name=region)


def _core() -> Any:
    """A botocore session that shares the models of AWS's services with all others, and uses :func:`parsed_moment`.

    Otherwise each session would parse the models again: 13 MB and a twentieth of a second for S3 alone.
    """
    core = botocore.session.get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parsed_moment)
    core.register_component("data_loader", _models(core.get_config_variable("data_path")))
    return core


@cache
def _models(data_path: str | None) -> Any:
    return botocore.loaders.create_loader(data_path)


def client_config(properties: Mapping[str, str], *, attempts: int = 3, **more: Any) -> Config:
    """Timeouts and attempts of every client: a refused connection fails within 5 s, and a request without an answer is
    repeated (rule: failures-cost-no-row).
    """
    return Config(
        connect_timeout=float(properties.get(S3_CONNECT_TIMEOUT) or 3),
        read_timeout=30,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        max_pool_connections=_MAX_CONNECTIONS,
        **more,
    )
