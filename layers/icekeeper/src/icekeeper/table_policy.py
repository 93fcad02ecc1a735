"""From the deployment's settings, the policy file and a loaded table to the policy that holds for it (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import PolicyError, StorageError
from icekeeper.policy import ResolvedPolicy, layers_for, resolve
from icekeeper.policy.policy_file import PolicyFile, parse_policy_file
from icekeeper.storage import Storage
from icekeeper.storage_paths import S3_SCHEMES, split_path

__all__ = ["POLICY_FILE", "TablePolicies", "read_policy_file"]

POLICY_FILE = "ICEKEEPER_POLICY_FILE"
"""The environment variable that names the policy file."""


class TablePolicies:
    """The policies of a deployment's tables; the policy file is read once, when it is first needed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def deployment(self, overrides: Mapping[str, str], *, unsafe: bool = False) -> ResolvedPolicy:
        """What holds without any table, for detection and sweeps.

        Raises:
            PolicyError: settings that are wrong, also those of the policy file.
            StorageError: the policy file cannot be read.
        """
        _ = self._file  # a broken one stops whatever would go by it, before anything is done
        return resolve(layers_for({}, self._environment, overrides), unsafe=unsafe)

    def of(
        self, catalog: Catalog, loaded: LoadedTable, overrides: Mapping[str, str], *, unsafe: bool = False
    ) -> ResolvedPolicy:
        """The policy of one table.

        Raises:
            PolicyError: settings that are wrong.
            StorageError: the policy file cannot be read.
        """
        name = loaded.name
        rules = self._file.layers(catalog.warehouse, ".".join(name.namespace), name.name)
        layers = layers_for(loaded.metadata.properties, self._environment, overrides, rules=rules)
        return resolve(layers, unsafe=unsafe)

    @cached_property
    def _file(self) -> PolicyFile:
        return read_policy_file(self._environment.get(POLICY_FILE, "").strip())


def read_policy_file(address: str, storage: Storage | None = None) -> PolicyFile:
    """The policy file at an address; no rules without an address, or where a bucket has no such object.

    A deployed stack always names an object of its control bucket, so that somebody can put one there later.  A local
    file is named by somebody who has it.

    Raises:
        PolicyError: the file is malformed, or a local one does not exist.
        StorageError: it cannot be read, or there is no such bucket: that must not be taken for no rules.
    """
    if not address:
        return PolicyFile()
    storage = storage or Storage({})
    try:
        data = storage.read(address)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise StorageError(f"the policy file cannot be read: {error}") from error
        if split_path(address).scheme not in S3_SCHEMES:
            raise PolicyError(f"policy file {address} does not exist ({POLICY_FILE} names it)") from error
        # A missing bucket looks like a missing object; listing below the object's own name tells them apart.
        next(iter(storage.list(address)), None)
        return PolicyFile()
    try:
        return parse_policy_file(data.decode(), address)
    except UnicodeDecodeError as error:
        raise PolicyError(f"policy file {address} is no UTF-8 text") from error
