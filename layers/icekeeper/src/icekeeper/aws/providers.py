"""Credentials that botocore renews although it does not know where they come from: of a role, and of a catalog."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Protocol

from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    DeferredRefreshableCredentials,
    RefreshableCredentials,
)

from icekeeper.aws.settings import AwsIdentity
from icekeeper.aws.vended import EARLY_S, Vended, Vendor
from icekeeper.machine.clock import system_clock

__all__ = ["AssumedRole", "SameAs", "VendedKeys"]

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
