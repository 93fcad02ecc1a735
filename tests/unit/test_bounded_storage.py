"""A store within a table's bound: no method reaches outside, and no link that appears meanwhile leads there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import LocationRefused, StorageError
from icekeeper.storage import local_files as local
from icekeeper.storage import storage as storage_module
from icekeeper.storage.allowed_locations import ALLOWED_LOCATIONS, AllowedLocations
from icekeeper.storage.multipart import assemble, bounded_output
from icekeeper.storage.read_ahead import Read, direct_reads
from icekeeper.storage.storage import Storage, store_now_ms

METHODS: dict[str, Callable[[Storage, str], object]] = {
    "read": lambda s, path: s.read(path),
    "read_end": lambda s, path: s.read_end(path, 4),
    "write": lambda s, path: s.write(path, b"theirs"),
    "open_input": lambda s, path: s.open_input(path),
    "open_input of a small one": lambda s, path: s.open_input(path, 10),
    "open_output": lambda s, path: s.open_output(path),
    "size": lambda s, path: s.size(path),
    "list": lambda s, path: list(s.list(path)),
    "list_if_allowed": lambda s, path: s.list_if_allowed(path),
    "divide": lambda s, path: s.divide(path),
    "folders_in": lambda s, path: s.folders_in(path),
    "list_folder": lambda s, path: list(s.list_folder(path)),
    "status": lambda s, path: s.status(path),
    "can_list": lambda s, path: s.can_list(path),
    "can_delete": lambda s, path: s.can_delete(path),
    "require": lambda s, path: s.require([path]),
    "s3_at": lambda s, path: s.s3_at(path),
    "bounded_output": lambda s, path: bounded_output(s, path).__enter__(),
    "assemble": lambda s, path: assemble(s, path, ()),
    "direct_reads": lambda s, path: direct_reads(s)(Read(path, None, 0, 4)),
}
# Those that raise nothing, or are given no path to use.
OTHERS = {
    "delete",
    "remove_if_empty",
    "allows",
    "place",
    "within",
    "operators",
    "with_scratch",
    "shows_missing",
    "translated",
    "uses_boto3",
    "s3",
}
KEYS = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.endpoint": "http://127.0.0.1:9", "s3.region": "x"}


def test_every_method_is_among_the_tested_ones() -> None:
    public = {name for name in vars(Storage) if not name.startswith("_")}
    assert public == {name for name in METHODS if name in public} | OTHERS


def bounded(*prefixes: str) -> Storage:
    return Storage(AllowedLocations(prefixes, False).put_into(KEYS))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("as_worker", [False, True], ids=["here", "in a worker"])
def test_no_method_of_a_store_reaches_outside_of_the_bound(tmp_path: Path, method: str, *, as_worker: bool) -> None:
    """(rule 92)"""
    inside, private = tmp_path / "wh", tmp_path / "private"
    inside.mkdir()
    private.mkdir()
    (private / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(private)
    (inside / "file").symlink_to(private / "secret")
    for store, outside in (
        (bounded(str(inside)), str(private / "secret")),
        (bounded(str(inside)), (private / "secret").as_uri()),
        (bounded(str(inside)), f"{inside}/../private/secret"),
        (bounded(str(inside)), str(inside / "link" / "secret")),
        (bounded(str(inside)), "s3://lake/t/f"),
        (bounded("s3://lake/wh"), str(private / "secret")),
        (bounded("s3://lake/wh"), "s3://lake/t/f"),
        (bounded("s3://lake/wh"), "s3a://other/wh/f"),
        (bounded("s3://lake/wh"), "gs://lake/wh/f"),
        (bounded("s3://lake/wh"), "hdfs://lake/wh/f"),
        (Storage(KEYS).within(AllowedLocations(("s3://lake/wh",), True)), "s3://lake/t/f"),
    ):
        used = pickle.loads(pickle.dumps(store)) if as_worker else store
        with pytest.raises(LocationRefused, match="lies outside"):
            METHODS[method](used, outside)
    assert (private / "secret").read_bytes() == b"secret"
    assert [path.name for path in private.iterdir()] == ["secret"]


def test_deletion_reports_what_is_outside_and_leaves_it(tmp_path: Path) -> None:
    inside, private = tmp_path / "wh", tmp_path / "private"
    inside.mkdir()
    private.mkdir()
    for name in ("a", "b"):
        (private / name).write_bytes(b"x")
        (inside / name).write_bytes(b"x")
    (inside / "link").symlink_to(private)
    store = bounded(str(inside))
    outside = [str(private / "a"), f"{inside}/link/b", "s3://lake/f", f"{inside}/../private/a"]
    report = store.delete([*outside, str(inside / "a"), f"file:{inside}/b"])
    assert report.deleted == (str(inside / "a"), f"file:{inside}/b")
    assert set(report.failed) == set(outside)
    assert all("lies outside" in reason for reason in report.failed.values())
    (private / "empty").mkdir()
    assert not store.remove_if_empty(str(private / "empty"))
    assert not store.remove_if_empty(f"{inside}/link/empty")
    assert sorted(path.name for path in private.iterdir()) == ["a", "b", "empty"]
    assert [path.name for path in inside.iterdir()] == ["link"]


def test_the_clock_of_a_store_outside_is_not_asked(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    assert store_now_ms(bounded(str(tmp_path / "wh")), str(private), may_write=True) is None
    assert list(private.iterdir()) == []


def test_a_warehouse_behind_a_link_is_honest(tmp_path: Path) -> None:
    real, link = tmp_path / "disk" / "wh", tmp_path / "wh"
    (real / "t").mkdir(parents=True)
    link.symlink_to(real)
    (real / "alias").symlink_to(real / "t")
    for spelled in (str(link), str(real), link.as_uri(), f"file:{real}/"):
        store = bounded(spelled)
        for folder in (f"{link}/t", f"{real}/t/new", f"file:{link}/alias", f"{link.as_uri()}/t/../t"):
            path = f"{folder}/f"
            store.write(path, b"one")
            with store.open_output(path) as stream:
                stream.write(b"three")
            assert store.read(path) == b"three"
            assert store.size(path) == 5
            assert store.read_end(path, 2).data == b"ee"
            found = store.status(path)
            assert found is not None
            assert found.size == 5
            assert store.delete([path]).failed == {}
            assert store.status(path) is None
            assert store.size(path) is None


ATTACKED: dict[str, Callable[[Storage, str], Any]] = {
    "read": lambda s, path: s.read(path),
    "open_input": lambda s, path: s.open_input(path),
    "write": lambda s, path: s.write(path, b"theirs"),
    "open_output": lambda s, path: s.open_output(path),
    "delete": lambda s, path: s.delete([path]).deleted,
    "status": lambda s, path: s.status(path),
    "remove_if_empty": lambda s, path: s.remove_if_empty(path),
}


@pytest.mark.skipif(not local._MAY_HOLD, reason="only Linux opens files by the folder that is held")
@pytest.mark.parametrize("method", ATTACKED)
@pytest.mark.parametrize("of_file", [False, True], ids=["folder", "file"])
def test_a_link_that_appears_between_check_and_use_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, *, of_file: bool
) -> None:
    """(rule 257)"""
    folder, private = tmp_path / "wh" / "t" / "data", tmp_path / "private"
    folder.mkdir(parents=True)
    private.mkdir()
    (private / "f").write_bytes(b"secret")
    (private / "empty").mkdir()
    name = "empty" if method == "remove_if_empty" else "f"
    if method != "remove_if_empty":
        (folder / "f").write_bytes(b"own")
    held = local.held

    def swapped(real: str, *, make: bool = False) -> Any:
        """The tenant acts once the path was found to be inside."""
        if of_file and name == "f":
            os.unlink(folder / "f")
            (folder / "f").symlink_to(private / "f")
        else:
            os.rename(folder, tmp_path / "before")
            folder.symlink_to(private)
        return held(real, make=make)

    monkeypatch.setattr(storage_module, "held", swapped)
    try:
        found = ATTACKED[method](bounded(str(tmp_path / "wh")), str(folder / name))
    except StorageError:
        found = None
    if method == "delete" and of_file:
        assert found == (str(folder / "f"),), "the link itself is gone"
    elif method in ("write", "open_output") and of_file:
        assert not (folder / "f").is_symlink(), "the link was replaced"
    else:
        assert not found
    assert (private / "f").read_bytes() == b"secret"
    assert sorted(path.name for path in private.iterdir()) == ["empty", "f"]


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.parquet")
    with pytest.raises(StorageError, match="is no regular file"):
        bounded(str(tmp_path)).read(str(tmp_path / "f.parquet"))


def test_secrets_and_bounds_stay_out_of_what_pyiceberg_gets() -> None:
    assert ALLOWED_LOCATIONS not in bounded("s3://lake")._properties


def test_a_store_of_which_the_properties_say_too_little_is_named() -> None:
    path = "abfs://lake@account.dfs.core.windows.net/t/f"
    with pytest.raises(StorageError, match=r"^abfs://lake@.* cannot be reached by .*; set .* adls\.account-name$"):
        Storage({}).read(path)
