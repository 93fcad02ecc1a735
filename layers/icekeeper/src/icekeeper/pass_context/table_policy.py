"""The policy of a table, from the deployment's settings, the policy file and the table's properties
(rule: properties-never-loosen)."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.machine.resources import variables_set
from icekeeper.metadata.document import TableMetadata
from icekeeper.operation_facts import FACTS
from icekeeper.policy import ResolvedPolicy, layers_for, resolve
from icekeeper.policy.allowed_prefixes import check_allowed_prefixes
from icekeeper.policy.layers import ENVIRONMENT_PREFIX, Layer, without_past_pauses
from icekeeper.policy.ownership import BucketMaintenance, Owners, bucket_layers, decide_owners
from icekeeper.policy.policy_file import PolicyRules, matching_layers, parse_policy_file
from icekeeper.policy.request_may_set import requests_may, require_no_more
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import S3_SCHEMES, split_path
from icekeeper.storage.s3_reads import NoSuchObject
from icekeeper.storage.storage import Storage

POLICY_FILE = "ICEKEEPER_POLICY_FILE"
"""The environment variable that names the policy file."""
# The most cached policies: a fleet has few kinds of tables.
_MOST_KINDS = 256
_PLAIN = frozenset({bool, int, str, Fraction, type(None)})


class TablePolicies:
    """The policies of a deployment's tables; policy file and variables are read once, at first use.

    Safe to share between threads.  Tables with the same settings share one policy, which is checked once.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        of_requests: bool = False,
        of_user: bool = False,
        clock: Clock = system_clock,
    ) -> None:
        """``of_requests``: overrides come from people who may only request a pass; ``clock`` ends pauses.

        ``of_user``: if no variable names a policy file, the user's own file applies (:func:`policy_address`).
        """
        self._environment, self._clock, self._of_user = environment, clock, of_user
        self._resolved: dict[Hashable, ResolvedPolicy] = {}
        self._of_requests = of_requests
        self._of_call: Mapping[str, str] = {}
        self._asks = "a request"

    def of_requests(self, of_call: Mapping[str, str], asks: str = "a request") -> TablePolicies:
        """The same policies for requests, whose settings override those of the operator's call (``of_call``).

        ``asks``: how messages name the origin of the request.

        If all overrides already come from requests, ``of_call`` does too, and then does not apply to other requests.
        """
        if self._of_requests:
            return self
        found = copy(self)
        found._of_requests, found._of_call, found._asks = True, of_call, asks
        return found

    def without_results(self) -> TablePolicies:
        """The same policies for another process, without those that tables have already shared."""
        found = copy(self)
        found._resolved = {}
        return found

    def deployment(self, overrides: Mapping[str, str], *, unsafe: bool = False) -> ResolvedPolicy:
        """The policy without table settings, for detection and for the orphans of a whole bucket.

        Raises:
            PolicyError: wrong settings, also in the policy file.
            StorageError: the policy file cannot be read.
        """
        _ = self._file  # read now, so that a malformed file is reported before any work
        check_allowed_prefixes(self._environment.get(ALLOWED_PREFIXES, ""))
        requests_may(self._environment)
        return resolve(layers_for({}, self._environment, overrides), unsafe=unsafe)

    def of(
        self, catalog: Catalog, loaded: LoadedTable, overrides: Mapping[str, str], *, unsafe: bool = False
    ) -> ResolvedPolicy:
        """The policy of a table, including which operations the table bucket does itself.

        Raises:
            PolicyError: wrong settings.
            RequestRefused: a request's overrides would delete more (rule: requests-never-exceed-policy).
            StorageError: the policy file or the table bucket's maintenance settings cannot be read.
        """
        name, built_in = loaded.name, catalog.built_in_maintenance
        bucket = None if built_in is None else built_in.read(name)
        rules = matching_layers(self._file, catalog.id.warehouse, ".".join(name.namespace), name.name)
        stated = [] if bucket is None else bucket_layers(bucket, has_order=_has_order(loaded.metadata))

        def resolved_with(settings: Mapping[str, str]) -> ResolvedPolicy:
            layers = layers_for(loaded.metadata.properties, self._variables, settings, rules=rules, bucket=stated)
            return self._of_layers(without_past_pauses(layers, self._clock()), unsafe=unsafe)

        resolved = resolved_with({**self._of_call, **overrides})
        if overrides and self._of_requests:
            own = resolved_with(self._of_call)
            require_no_more(own, resolved, requests_may(self._environment), str(name), asks=self._asks)
        if bucket is None or built_in is None:
            return resolved
        owners = decide_owners(bucket, resolved.policy.ownership)
        if _leaves_work(bucket, owners, resolved):
            # One more request for each table, so only if the answer may change the owner.
            owners = decide_owners(built_in.with_jobs(bucket, name), resolved.policy.ownership)
        return replace(resolved, owners=owners)

    def _of_layers(self, layers: Sequence[Layer], *, unsafe: bool) -> ResolvedPolicy:
        key = _key_of(layers, unsafe=unsafe)
        found = None if key is None else self._resolved.get(key)
        if found is None:
            found = resolve(layers, unsafe=unsafe)
            if key is not None and len(self._resolved) < _MOST_KINDS:
                self._resolved[key] = found
        return found

    @cached_property
    def _variables(self) -> Mapping[str, str]:
        given = variables_set(self._environment)
        return {name: value for name, value in given.items() if name.startswith(ENVIRONMENT_PREFIX)}

    @cached_property
    def _file(self) -> PolicyRules:
        return read_policy_file(policy_address(self._environment, of_user=self._of_user))


def _key_of(layers: Sequence[Layer], *, unsafe: bool) -> Hashable | None:
    """A cache key for settings; ``None`` if a value has no reliable equality.

    The key includes types, because ``True == 1``, but only ``True`` is a boolean setting.
    """
    if any(type(value) not in _PLAIN for layer in layers for value in layer.values.values()):
        return None
    parts = [
        (
            layer.source,
            layer.is_bound,
            layer.is_table,
            *((key, type(value), value) for key, value in layer.values.items()),
        )
        for layer in layers
    ]
    return tuple(parts), unsafe


def _leaves_work(bucket: BucketMaintenance, owners: Owners, resolved: ResolvedPolicy) -> bool:
    """Whether the bucket keeps an operation of the policy, because it is switched on there."""
    if resolved.why_disabled() is not None:
        return False
    wanted = owners.owned.keys() & {*resolved.policy.operations}
    return any(FACTS[operation].built_in in bucket.is_enabled for operation in wanted)


def users_policy_file(environment: Mapping[str, str]) -> Path | None:
    """Where a user's own policy file is: ``icekeeper/icekeeper.yaml`` in ``$XDG_CONFIG_HOME`` or ``~/.config``.

    A relative ``XDG_CONFIG_HOME`` is ignored (XDG Base Directory Specification).  ``None``: the user has no home, or
    the system has no owners of files.
    """
    folder = Path(environment.get("XDG_CONFIG_HOME") or "")
    if not folder.is_absolute():
        folder = Path(environment.get("HOME") or "", ".config")
    return folder / "icekeeper" / "icekeeper.yaml" if folder.is_absolute() and hasattr(os, "getuid") else None


def policy_address(environment: Mapping[str, str], *, of_user: bool) -> str:
    """The address of the policy file in force; empty: there is none.

    ``ICEKEEPER_POLICY_FILE`` wins; otherwise, with ``of_user``, the user's own file applies, if there is one.
    A file of the current folder never does: with a cloned repository, its author would set the user's retention.

    Raises:
        PolicyError: somebody else may write the user's file.
        StorageError: whether there is such a file, and whose it is, cannot be read.
    """
    named = environment.get(POLICY_FILE, "").strip()
    file = users_policy_file(environment) if of_user and not named else None
    if file is None:
        return named
    try:
        try:
            os.lstat(file)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        real = os.path.realpath(file)  # a link to a missing file is an error, as any file that cannot be read
        for path in (real, os.path.dirname(real), str(file.parent)):
            status = os.stat(path)
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PolicyError(
                    f"policy file {file} is not read, because others may change it: {path} must belong to this user, "
                    f"and nobody else may write it (chmod go-w {shlex.quote(path)})"
                )
    except OSError as error:
        raise StorageError(f"the policy file cannot be read: {file}: {error.strerror or error}") from error
    return str(file)


def read_policy_file(address: str, storage: Storage | None = None) -> PolicyRules:
    """Read the policy file at an address; empty without an address, or if the bucket has no such object.

    A deployed stack always names an object of its control bucket, which may be created later.  A local file must exist.

    Raises:
        PolicyError: the file is malformed, or a local file does not exist.
        StorageError: the file cannot be read, or the bucket does not exist, which must not count as an empty file.
    """
    if not address:
        return ()
    storage = storage or Storage({})
    try:
        data = storage.read(address)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise StorageError(f"the policy file cannot be read: {error}") from error
        if split_path(address).scheme not in S3_SCHEMES:
            raise PolicyError(f"policy file {address} does not exist ({POLICY_FILE} names it)") from error
        if not isinstance(error.__cause__, NoSuchObject):
            # If the bucket is missing, this listing raises.
            next(iter(storage.list(address)), None)
        return ()
    try:
        return parse_policy_file(data.decode(), address)
    except UnicodeDecodeError as error:
        raise PolicyError(f"policy file {address} is not UTF-8 text") from error


def _has_order(metadata: TableMetadata) -> bool:
    return any(field["transform"] != "void" for field in metadata.default_sort_order_fields)
