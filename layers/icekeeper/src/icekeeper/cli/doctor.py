"""``icekeeper doctor``: check what every command relies on, a line each, with the remedy where a check fails."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import AnyCatalogs, AsJson, only_catalog
from icekeeper.cli.console import EXIT_OK, answer, print_failed
from icekeeper.errors import CatalogNotFound, MaintenanceError, PartlyListed, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.text import counted, masked

if TYPE_CHECKING:
    from icekeeper.catalogs.catalog import LoadedTable
    from icekeeper.storage.storage import Storage

_PACKAGES = ("pyiceberg", "pyarrow", "boto3", "pyspark")
# Amazon S3 refuses signatures that differ by 15 minutes; leases and ages of files need much less.
_MOST_SKEW_S = 60


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    check: str
    status: str
    """``succeeded``, ``failed`` or ``skipped``."""
    detail: str
    """What was found, or why the check failed and what to do."""
    catalog: str = ""


def doctor(
    catalogs: AnyCatalogs = None,
    write: Annotated[
        bool, typer.Option("--write", help="also write, read and delete a scratch file beside a table's data")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check versions, settings, state, engine, catalogs, credentials, stores and clocks, and say what to do.

    Nothing is changed, except with --write, which removes its scratch file.
    """
    from rich.text import Text

    from icekeeper.report.terminal import print_rows

    checks = [*_of_machine(), *_of_catalogs(catalogs, write=write)]
    failures = [check for check in checks if check.status == "failed"]
    document = {"status": "failed" if failures else "succeeded", "checks": [asdict(check) for check in checks]}
    console = answer(document, as_json=as_json)
    styles = {"succeeded": "green", "failed": "red", "skipped": "dim"}
    print_rows(
        console,
        [
            (Text({"succeeded": "ok"}.get(found.status, found.status), styles[found.status]), Text(found.check),
             Text(found.catalog), Text(found.detail))
            for found in checks
        ],
    )  # fmt: skip
    if not failures:
        return EXIT_OK
    names = ", ".join(dict.fromkeys(f"{found.check} {found.catalog}".strip() for found in failures))
    return print_failed(f"{counted(len(failures), 'check')} failed: {names}; the lines above say what to do")


def _checked(name: str, look: Callable[[], str], catalog: str = "") -> Check:
    """Make a check; ``look`` returns what it found, or raises an error whose sentence says what to do."""
    try:
        return Check(name, "succeeded", masked(look()), catalog)
    except CatalogNotFound:  # a wrong call
        raise
    except PolicyError as error:
        return Check(name, "failed", masked(f"{error}{error.hint()}"), catalog)
    except MaintenanceError as error:
        more = f" (icekeeper docs {error.page})" if error.page else ""
        return Check(name, "failed", masked(f"{error}{more}"), catalog)


def _of_machine() -> Iterator[Check]:
    yield _checked("versions", _versions)
    yield _checked("settings", _settings)
    yield _checked("state", _state)
    yield _checked("engine", _engine)


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = [f"icekeeper {version('icekeeper')}", f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join([*found, platform.platform()])


def _settings() -> str:
    from icekeeper.pass_context.table_policy import TablePolicies, policy_address, read_policy_file

    address = policy_address(os.environ, of_user=True)
    rules = read_policy_file(address)
    TablePolicies(os.environ, of_user=True).deployment({})
    named = sorted(name for name in os.environ if name.startswith("ICEKEEPER_") and os.environ[name])
    file = f"policy file {address} with {counted(len(rules), 'rule')}" if address else "no policy file"
    return f"{file}; variables: {', '.join(named) or 'none'}"


def _state() -> str:
    from icekeeper.state.identity import parse_address, state_path
    from icekeeper.state.open import open_state

    open_state(os.environ).require_writable()
    address = parse_address(os.environ)
    where = f"file {state_path(os.environ)}" if address is None else f"DynamoDB table {address.name}"
    return f"{where} can be read and written"


def _engine() -> str:
    from icekeeper.engines.engine import spark_is_installed
    from icekeeper.engines.local_engine import LocalEngine
    from icekeeper.machine.resources import this_machine
    from icekeeper.text import size_text

    machine = this_machine()
    processes = counted(LocalEngine().slots, "process", "processes")
    local = f"local: {processes}, {counted(machine.cores, 'core')}, {size_text(machine.memory_bytes)} of memory"
    if not spark_is_installed():
        return f"{local}; Spark is not installed, and needed only for --engine spark"
    from icekeeper.engines.spark import find_java_home

    return f"{local}; Spark with Java in {find_java_home()}"


def _of_catalogs(named: Sequence[str] | None, *, write: bool) -> Iterator[Check]:
    from icekeeper.catalogs.load import known_catalogs

    try:
        names = named or sorted(known_catalogs()) or [only_catalog()]
    except PolicyError as error:
        yield Check("catalog", "failed", masked(str(error)))
        return
    for name in names:
        sample: list[LoadedTable] = []
        yield _checked("catalog", partial(_listed, name, sample), name)
        if sample:
            yield from _of_store(sample[0], name, write=write)


def _listed(name: str, sample: list[LoadedTable]) -> str:
    """List the tables of a catalog, and load the first into ``sample``."""
    from icekeeper.catalogs.load import open_catalog

    catalog, tables, left_out = open_catalog(name), list[TableName](), ""
    try:
        tables.extend(catalog.list_tables())
    except PartlyListed as error:
        left_out = f"; {error}"
    if not tables:
        return f"no table{left_out}; store and credentials are checked by a table"
    sample.append(catalog.load(tables[0]))
    return f"{counted(len(tables), 'table')}; {tables[0]} can be loaded{left_out}"


def _of_store(table: LoadedTable, catalog: str, *, write: bool) -> Iterator[Check]:
    from icekeeper.storage.paths import is_s3
    from icekeeper.storage.storage import Storage

    storage, location = Storage(table.io_properties), table.metadata.location
    if is_s3(location):
        yield _checked("credentials", partial(_credentials, storage, table), catalog)
    yield _checked("store", partial(_read, storage, table), catalog)
    yield _checked("clock", partial(_skew, storage, location), catalog)
    if write:
        yield _checked("write", partial(_written, storage, table), catalog)
    else:
        yield Check("write", "skipped", "--write checks it with a scratch file", catalog)


def _credentials(storage: Storage, table: LoadedTable) -> str:
    from icekeeper.aws.session import aws_session
    from icekeeper.aws.settings import is_anonymous

    if is_anonymous(table.io_properties):
        return "none, because s3.anonymous is true"
    with storage.translated(table.metadata.location):
        session = aws_session(table.io_properties)
        keys, source = session.keys(), session.source()
    if keys is None:
        raise StorageError("none found: sign in, or name a profile, role or keys (icekeeper docs catalogs)")
    origin = "the properties" if source.method == "explicit" else source.method
    return f"key {keys.access_key} from {origin}, region {session.region_name or 'unknown'}"


def _read(storage: Storage, table: LoadedTable) -> str:
    location = table.metadata.location
    size = len(storage.read(table.metadata_location))
    lists = storage.can_list(location)
    does = "lists and reads" if lists else "reads, and refuses to list, so passes remove no orphans in"
    return f"{does} {location} ({counted(size, 'byte')} of metadata)"


def _skew(storage: Storage, location: str) -> str:
    from icekeeper.machine.clock import system_clock
    from icekeeper.storage.storage import store_now_ms

    theirs_ms = store_now_ms(storage, location, False)
    if theirs_ms is None:
        return "the store does not show its time"
    apart_s = round(abs(system_clock() - theirs_ms) / 1000)
    if apart_s > _MOST_SKEW_S:
        raise StorageError(f"this machine's clock and the store's differ by {apart_s} s; synchronise them (NTP)")
    return f"this machine's clock and the store's differ by {apart_s} s"


def _written(storage: Storage, table: LoadedTable) -> str:
    if not storage.can_delete(table.metadata.location):
        return "not tried: this store deletes no files, so a scratch file would stay"
    path, data = f"{table.metadata.data_location}/icekeeper-doctor-{uuid.uuid4()}.parquet", b"icekeeper doctor"
    try:
        storage.write(path, data)
        if storage.read(path) != data:
            raise StorageError(f"{path} was read with other bytes than were written")
    finally:
        failed = storage.delete([path]).failed
    if failed:
        raise StorageError(f"the scratch file {path} cannot be deleted: {failed[path]}; delete it")
    return f"a scratch file in {table.metadata.data_location} was written, read and deleted"
