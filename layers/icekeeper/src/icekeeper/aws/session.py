"""boto3 sessions for PyIceberg's properties, shared by identity, with credentials that renew themselves."""

from __future__ import annotations

import contextvars
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
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
from icekeeper.machine.clock import steady_s, system_clock
from icekeeper.text import remember_secrets

# Waits for a source of credentials, but not for ever: a credential process may hang, and botocore sets it no limit.

Answer = TypeVar("Answer")

ANSWERS_IN_S = 120.0
"""A person may have to type a code of a second factor meanwhile."""


class Patience:
    """Waits for one source of credentials; one that has not answered yet is not asked again."""

    def __init__(self) -> None:
        self._silent: Future[Any] | None = None

    def ask(self, ask: Callable[[], Answer], provider: str) -> Answer:
        """What ``ask`` answers, asked in a thread of its own, which is left behind if it does not answer.

        Raises:
            CredentialRetrievalError: there was no answer within :data:`ANSWERS_IN_S` seconds.
        """
        if self._silent is not None and not self._silent.done():
            raise _silence(provider)
        answer: Future[Answer] = Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        # A daemon: the process can end although nobody ever answers.
        threading.Thread(target=contextvars.copy_context().run, args=(run,), name="credentials", daemon=True).start()
        try:
            return answer.result(ANSWERS_IN_S)
        except TimeoutError as error:
            if answer.done():  # it is what the source said
                raise
            self._silent = answer
            raise _silence(provider) from error


def _silence(provider: str) -> CredentialRetrievalError:
    return CredentialRetrievalError(provider=provider, error_msg=f"it has not answered for {ANSWERS_IN_S:g} s")


# Credentials that botocore renews although it does not know where they come from: of a role, and of a catalog.

_ROLE_SESSION_NAME = "icekeeper"
# Later than this before they expire, work waits for others, or fails.
_LATE_S = 60.0


class Source(Protocol):
    """What a role is assumed with."""

    def source(self) -> Any:
        """botocore's credentials, or ``None``."""
        ...

    def client(self, service: str) -> Any:
        """A client that uses them."""
        ...


class AssumedRole(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    """The keys of a role that another identity assumes; assumed when it is first used, and again before they expire."""

    METHOD = "assume-role"
    CANONICAL_NAME = "custom-icekeeper-assume-role"

    def __init__(self, source: Source, identity: AwsIdentity) -> None:
        super().__init__()
        self._source, self._identity = source, identity
        self._asking: Any = None

    def load(self) -> Any:
        """See botocore; there are no credentials without those of the source."""
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
        """The one that asks for the role; botocore would make one each time, with the source's keys of that time."""
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
        """See botocore."""
        return self._other.source()


class VendedKeys(CredentialProvider):  # type: ignore[misc]  # as above
    """The keys that a catalog vends for a table; it is asked for others before they expire."""

    METHOD = "vended"
    CANONICAL_NAME = "custom-icekeeper-vended"

    def __init__(self, vendor: Vendor) -> None:
        super().__init__()
        self._vendor = vendor

    def load(self) -> Any:
        """See botocore."""
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
            # botocore's own 15 and 10 minutes would ask for keys that live as long with every request.
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


# Times in the answers of AWS and of servers that speak like it.


def told_moment(text: str) -> datetime | None:
    """The moment that a text of an answer names, in UTC where it names no zone; ``None`` where it names no moment.

    botocore takes a time without a zone for one of this machine's zone, and fails over what is no time.
    """
    try:
        found: datetime = parse_timestamp(text)
    except (ValueError, OverflowError, RuntimeError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# boto3 sessions for PyIceberg's properties, shared by all that use the same identity, so that each is asked for once.
#
# boto3 renews what it finds by itself: keys of a role of the machine, of a container, of a profile that assumes a role
# or signs on, and of a credential process.  A role that the properties name is assumed here in a way that boto3 renews,
# too. Sessions are not safe to share between threads while they make clients, so a lock guards that (boto3, "Session").

# As many as delete_threads and listing_threads allow.
_MAX_CONNECTIONS = 64

# Files of AWS's configuration may be edited, and keys in them replaced, while a process runs for weeks.
_KEPT_S = 300.0
# A catalog may vend keys of their own for each table.
_MOST_KEPT = 64


class Keys(NamedTuple):
    """Credentials at one moment; a repetition of the question may give others."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return f"Keys({self.access_key})"


class AwsSession:
    """One identity in one region; safe to share between threads."""

    def __init__(self, core: Any, **identity: str | None) -> None:
        """``core`` is botocore's session, of this one alone; ``identity`` is as :class:`boto3.Session` takes it."""
        self._session = boto3.Session(botocore_session=core, **identity)
        places = core.get_component("data_loader").search_paths
        places[:] = dict.fromkeys(places)  # boto3 adds its own with each session
        self._lock = threading.Lock()
        self._told: Keys | None = None
        self._has_none = False
        self._found: Any = None
        self._patience = Patience()

    @property
    def region_name(self) -> str | None:
        """The region; ``None`` if neither the properties nor AWS's own configuration name one."""
        region: str | None = self._session.region_name
        return region

    @property
    def has_credentials(self) -> bool:
        """Whether there are any.

        Raises:
            BotoCoreError: they cannot be had.
        """
        return self.source() is not None

    def client(self, service: str, *, first_base: type | None = None, **options: Any) -> Any:
        """A client of a service, whose credentials renew themselves; its class has ``first_base`` before boto3's own.

        Raises:
            BotoCoreError: no region is known, or the credentials cannot be had.
        """
        self.source()  # botocore would ask for the credentials itself, and wait for ever
        with self._lock:
            if first_base is not None:  # with one name it is registered once
                self._session.events.register(
                    f"creating-client-class.{service}",
                    lambda base_classes, **_: base_classes.insert(0, first_base),
                    unique_id=first_base.__name__,
                )
            made = self._session.client(service, **options)
        made.meta.events.register_first("before-sign", self._renew)
        return made

    def keys(self) -> Keys | None:
        """Credentials for a client that is not boto3's, renewed before they expire; ``None`` where there are none.

        Whoever keeps a client asks before each use: other keys than last time want another client.

        Raises:
            BotoCoreError, ClientError: they cannot be renewed.
        """
        credentials = self.source()
        if credentials is None:
            return None
        try:
            frozen = self._frozen(credentials)
        except RuntimeError as error:  # botocore's word for a source that gave keys that have expired already
            raise CredentialRetrievalError(provider=credentials.method, error_msg=str(error)) from error
        keys = Keys(frozen.access_key, frozen.secret_key, frozen.token or None)
        if keys != self._told:
            remember_secrets({"secret-access-key": keys.secret_key, "session-token": keys.token or ""})
            self._told = keys
        return keys

    def _frozen(self, credentials: Any) -> Any:
        """The keys of now, for which their source is asked where that is due."""
        if not getattr(credentials, "refresh_needed", lambda: False)():
            return credentials.get_frozen_credentials()
        return self._patience.ask(credentials.get_frozen_credentials, str(credentials.method))

    def botocore_session(self) -> Any:
        """A session with the same credentials and region, for a library that makes clients by itself.

        It must be another one: boto3 adds its methods to clients once for each session that is made of it.
        """
        core = _core()
        core.register_component("credential_provider", CredentialResolver([SameAs(self)]))
        core.set_config_variable("region", self.region_name)
        return core

    def _renew(self, signature_version: Any, **_: Any) -> None:
        """Renew the keys of a client before it signs, so that what goes wrong has one kind of error."""
        if signature_version is not UNSIGNED:
            self.keys()

    def source(self) -> Any:
        """botocore's credentials, which renew themselves when they are asked; ``None`` where there are none.

        Raises:
            BotoCoreError: they cannot be had.
        """
        with self._lock:
            if self._has_none:
                return None
            if self._found is None:
                self._found = self._patience.ask(self._session.get_credentials, "the configured source of credentials")
                self._has_none = self._found is None  # to look again takes seconds where no metadata service answers
            return self._found


def aws_session(properties: Mapping[str, str], prefixes: Sequence[str] = FILES) -> AwsSession:
    """The session for the credentials, profile, role and region of the properties; nothing is sent.

    Raises:
        BotoCoreError: there is no such profile.
    """
    return session_of(identity_in(properties, prefixes), region_of(properties, prefixes))


def session_of(identity: AwsIdentity, region: str | None) -> AwsSession:
    """The session of an identity; as :func:`aws_session`."""
    return _kept.get(_Key(identity, region, _surroundings()), partial(_new_session, identity, region))


class _Key(NamedTuple):
    identity: AwsIdentity
    region: str | None
    surroundings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    session: AwsSession
    made_s: float


class _Kept:
    """The newest sessions of this process."""

    def __init__(self) -> None:
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _Key, make: Callable[[], AwsSession]) -> AwsSession:
        with self._lock:
            found = self._entries.get(key)
            if found is None or steady_s() - found.made_s > _KEPT_S:
                found = self._entries[key] = _Entry(make(), steady_s())
            self._entries.move_to_end(key)
            if len(self._entries) > _MOST_KEPT:
                self._entries.popitem(last=False)
            return found.session


_kept = _Kept()


def _surroundings() -> tuple[tuple[str, str], ...]:
    """The variables that AWS's SDKs look at; functions of one process may have different ones."""
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
    """A session of botocore that shares the models of AWS's services with all others.

    Each would read and parse them anew: 13 MB and a twentieth of a second for S3 alone.  Times in answers are read by
    :func:`.told_moment`.
    """
    core = botocore.session.get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=told_moment)
    core.register_component("data_loader", _models(core.get_config_variable("data_path")))
    return core


@cache
def _models(data_path: str | None) -> Any:
    return botocore.loaders.create_loader(data_path)


def client_config(properties: Mapping[str, str], *, attempts: int = 3, **more: Any) -> Config:
    """Timeouts and attempts of every client: a refused connection fails within 5 s, a lost answer is asked for again
    (rule: failures-cost-no-row).
    """
    return Config(
        connect_timeout=float(properties.get(S3_CONNECT_TIMEOUT) or 3),
        read_timeout=30,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        max_pool_connections=_MAX_CONNECTIONS,
        **more,
    )
