"""Keys that a catalog vends with a table, and how to get others before they expire: the table is loaded anew.

A REST catalog says with the keys when they expire (Iceberg-Java, ``S3FileIOProperties.SESSION_TOKEN_EXPIRES_AT_MS``);
keys without that are taken as they are.  Only the process that has signed in to the catalog can ask it.  A worker gets
the keys that are current when its work is sent to it, and no others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.errors import MaintenanceError, StorageError
from icekeeper.machine.clock import system_clock

__all__ = ["EARLY_S", "Vended", "Vendor", "current_properties", "remember_vendor", "vendor_of"]

_ACCESS_KEY, _SECRET_KEY, _TOKEN = "s3.access-key-id", "s3.secret-access-key", "s3.session-token"
_EXPIRES = "s3.session-token-expires-at-ms"
EARLY_S = 300.0
"""So long before they expire others are asked for."""
# A scan of a large fleet is vended keys for each table while passes go on over some; those in use are not forgotten.
_MOST_REMEMBERED = 4096

LoadAgain: TypeAlias = Callable[[], Mapping[str, str]]
"""Loads the table and gives the properties for its files; raises as :meth:`.Catalog.load` does."""


@dataclass(frozen=True, slots=True)
class Vended:
    """Keys for the files of one table, and the epoch millisecond at which they expire."""

    access_key: str
    secret_key: str
    session_token: str
    expires_ms: int

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Vended | None:
        """The keys among the properties; ``None``: there are none, or none that are known to expire."""
        access_key, secret_key, token = (properties.get(key, "") for key in (_ACCESS_KEY, _SECRET_KEY, _TOKEN))
        expires = properties.get(_EXPIRES, "")
        if not (access_key and secret_key and token and expires.isdecimal()):
            return None
        return cls(access_key, secret_key, token, int(expires))

    def put_into(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The properties with these keys in place of others."""
        keys = {_ACCESS_KEY: self.access_key, _SECRET_KEY: self.secret_key, _TOKEN: self.session_token}
        return {**properties, **keys, _EXPIRES: str(self.expires_ms)}


class Vendor:
    """Who vended the keys of a table, and the newest of them."""

    def __init__(self, first: Vended, again: LoadAgain) -> None:
        self.newest = first
        self._again = again

    def renew(self) -> Vended:
        """Other keys than the newest.

        Raises:
            StorageError: the catalog vends none any more.
            MaintenanceError: it cannot be asked.
        """
        renewed = Vended.read(self._again())
        if renewed is None:
            raise StorageError("the catalog has vended keys that expire, and vends no others now")
        self.newest = renewed
        return renewed

    def lasting(self) -> Vended:
        """The newest keys, or others if those expire soon.

        Raises:
            MaintenanceError: they have expired, and others cannot be had.
        """
        left_ms = self.newest.expires_ms - system_clock()
        if left_ms > EARLY_S * 1000:
            return self.newest
        try:
            return self.renew()
        except MaintenanceError:
            if left_ms <= 0:
                raise
            return self.newest


_vendors: OrderedDict[str, Vendor] = OrderedDict()
_lock = threading.Lock()


def remember_vendor(properties: Mapping[str, str], again: LoadAgain) -> None:
    """Whoever uses these properties in this process is to get newer keys by ``again``."""
    vended = Vended.read(properties)
    if vended is None:
        return
    with _lock:
        _vendors[vended.session_token] = Vendor(vended, again)
        _vendors.move_to_end(vended.session_token)
        if len(_vendors) > _MOST_REMEMBERED:
            _vendors.popitem(last=False)


def vendor_of(session_token: str | None) -> Vendor | None:
    """Who vended the keys with this token to this process."""
    with _lock:
        found = _vendors.get(session_token or "")
        if found is not None:
            _vendors.move_to_end(session_token or "")
        return found


def current_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with newer keys in place of vended ones that expire soon, for a process that cannot ask.

    Raises:
        MaintenanceError: they have expired, and others cannot be had.
    """
    vendor = vendor_of(properties.get(_TOKEN))
    return dict(properties) if vendor is None else vendor.lasting().put_into(properties)
