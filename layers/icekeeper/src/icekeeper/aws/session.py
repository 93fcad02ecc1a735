"""boto3 sessions for PyIceberg's properties, shared by all that use the same identity, so that each is asked for once.

boto3 renews what it finds by itself: keys of a role of the machine, of a container, of a profile that assumes a role or
signs on, and of a credential process.  A role that the properties name is assumed here in a way that boto3 renews, too.
Sessions are not safe to share between threads while they make clients, so a lock guards that (boto3, "Session").
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import boto3
import botocore.loaders
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import CredentialResolver
from botocore.exceptions import CredentialRetrievalError

from icekeeper.aws.answer_in_time import Patience
from icekeeper.aws.providers import AssumedRole, SameAs, VendedKeys
from icekeeper.aws.settings import FILES, S3_CONNECT_TIMEOUT, AwsIdentity, identity_in, region_of
from icekeeper.aws.timestamps import told_moment
from icekeeper.aws.vended import vendor_of
from icekeeper.machine.clock import steady_s
from icekeeper.text import remember_secrets

__all__ = ["AwsSession", "Keys", "aws_session", "client_config", "session_of"]

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
    (rule 179).
    """
    return Config(
        connect_timeout=float(properties.get(S3_CONNECT_TIMEOUT) or 3),
        read_timeout=30,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        max_pool_connections=_MAX_CONNECTIONS,
        **more,
    )
