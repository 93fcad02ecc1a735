"""Where the files of tables may be, and a store that enforces it (rule: bound-every-table)."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.errors import LocationRefused, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.policy.allowed_prefixes import allowed_prefixes
from icekeeper.storage import local_files as local
from icekeeper.storage.allowed_locations import ALLOWED_LOCATIONS, ALLOWED_PREFIXES, AllowedLocations
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.multipart import assemble, bounded_output
from icekeeper.storage.part_plan import ObjectRange
from icekeeper.storage.read_ahead import direct_reads
from icekeeper.storage.storage import Storage, store_now_ms

# Where the operator, or otherwise a default, allows the files of tables
# (rule: bound-every-table).

ARN = "arn:aws:s3tables:eu-west-1:111122223333:bucket/lake"


def allowed(text: str, catalog: str = "lake", namespace: tuple[str, ...] = ("sales",)) -> tuple[str, ...] | None:
    found = allowed_prefixes(text, catalog, namespace)
    assert found is None or bool(found[0]) is (found[1] == "")
    return None if found is None else found[0]


def bound(
    kind: CatalogKind, warehouse: str, location: str, rules: str = "", namespace: tuple[str, ...] = ("sales",)
) -> AllowedLocations:
    catalog = ConfiguredCatalog("lake", kind, {"warehouse": warehouse}, rules)
    return catalog.bound_of(TableName(namespace, "t"), location)


class TestRules:
    def test_the_first_matching_rule_applies(self) -> None:
        assert allowed("") is None
        assert allowed(" ; ") is None
        rules = "lake.sales=s3://a/,s3://b/x;lake.s*=s3://c;*=s3://{catalog}/{namespace}"
        assert allowed(rules) == ("s3://a", "s3://b/x")
        assert allowed(rules, namespace=("support",)) == ("s3://c",)
        assert allowed(rules, namespace=("hr", "pay")) == ("s3://lake/hr.pay",)
        assert allowed(rules, catalog="other") == ("s3://other/sales",)
        assert allowed("lake.hr=s3://a") is None

    @pytest.mark.parametrize("text", ["s3://a", "lake=", "=s3://a", "lake=a/b", "lake=,", "lake=/"])
    def test_a_malformed_rule_is_an_error_that_shows_how(self, text: str) -> None:
        with pytest.raises(PolicyError, match=ALLOWED_PREFIXES):
            allowed(text)
        with pytest.raises(PolicyError, match=ALLOWED_PREFIXES):
            ConfiguredCatalog("lake", CatalogKind.SQL, {"warehouse": "s3://w"}, text)

    @pytest.mark.parametrize(
        "levels",
        [
            ("victim/private",),
            ("..", ".."),
            ("../..",),
            ("..",),
            (".",),
            ("", "", ""),
            ("", "private"),
            ("victim", ""),
            ("victim.private",),
            ("victim\\private",),
            ("a\nb",),
            ("a\x00b",),
            ("a\x85b",),
            ("a\u2028b",),
            (" ",),
            (),
        ],
    )
    def test_a_namespace_that_names_another_folder_gets_no_prefix(self, levels: tuple[str, ...]) -> None:
        found = allowed_prefixes("*=s3://lake/{namespace}/", "lake", levels)
        assert found is not None
        assert (found[0], found[1].endswith("; rename it")) == ((), True)
        assert allowed("*=s3://lake/", namespace=levels) == ("s3://lake",)

    def test_a_level_with_a_dot_matches_no_rule_of_two_levels(self) -> None:
        rules = "lake.victim.private=s3://lake/victim;*=s3://else"
        assert allowed(rules, namespace=("victim", "private")) == ("s3://lake/victim",)
        assert allowed(rules, namespace=("victim.private",)) == ()
        assert allowed(rules, namespace=("victim.private", "")) == ("s3://else",)

    def test_brackets_of_a_rule_are_literal(self) -> None:
        """(rule: bound-every-table): `team[1]` is not a pattern that matches `team1`."""
        rules = "lake[1].team[1]=s3://lake/private"
        assert allowed(rules, namespace=("team[1]",), catalog="lake[1]") == ("s3://lake/private",)
        assert allowed(rules, namespace=("team1",), catalog="lake[1]") is None
        assert allowed(rules, namespace=("team[1]",), catalog="lake1") is None

    def test_a_catalog_that_names_another_folder_gets_no_prefix(self) -> None:
        for name in ("a/b", "..", "a\\b", "a\nb"):
            assert allowed("*=s3://lake/{catalog}/", catalog=name) == ()
        assert allowed("*=s3://lake/{catalog}/", catalog="a.b") == ("s3://lake/a.b",)

    def test_nothing_is_allowed_for_a_wrong_name(self) -> None:
        none = bound(CatalogKind.REST, "s3://lake", "s3://lake/t", "*=s3://lake/{namespace}", ("a/b",))
        assert none.prefixes == ()
        with pytest.raises(LocationRefused, match=r"s3://lake/t was not accessed: .*namespace 'a/b' .*rename it"):
            none.require(["s3://lake/t"])


class TestDefaults:
    @pytest.mark.parametrize(
        ("kind", "warehouse", "location", "prefixes"),
        [
            (CatalogKind.SQL, "s3://lake/wh/", "s3://lake/wh/t", ("s3://lake/wh/",)),
            (CatalogKind.SQL, "s3a://lake", "file:///etc", ("s3a://lake",)),
            (CatalogKind.SQL, "file:///data/wh", "s3://other/t", ("file:///data/wh",)),
            (CatalogKind.SQL, "/data/wh", "/etc/t", ("/data/wh",)),
            (CatalogKind.SQL, "", "s3://b/ns/t", ("s3://b",)),
            (CatalogKind.SQL, "", "/data/wh/t", ()),
            (CatalogKind.SQL, "relative/wh", "relative/wh/t", ("relative/wh",)),
            (CatalogKind.REST, "relative/wh", "relative/wh/t", ()),
            (CatalogKind.REST, "demo", "s3a://b/ns/t", ("s3a://b",)),
            (CatalogKind.REST, "demo", "file:///home/t", ()),
            (CatalogKind.REST, "demo", "hdfs://elsewhere/t", ()),
            (CatalogKind.REST, "demo", "s3:/b/t", ()),
            (CatalogKind.REST, "gs://b/wh", "gs://b2/wh/t", ("gs://b2",)),
            (CatalogKind.REST, "gs://b/wh", "file:///home/t", ()),
            (CatalogKind.REST, "gs://b/wh", "s3://b/t", ()),
            (CatalogKind.REST, ARN, "s3://b/ns/t/metadata/1.json", ("s3://b/ns/t",)),
            (CatalogKind.REST, ARN, "s3://b/ns/t/1.json", ("s3://b/ns/t",)),
            (CatalogKind.S3_TABLES, ARN, "s3://x--table-s3/metadata/1.json", ("s3://x--table-s3",)),
            (CatalogKind.S3_TABLES, ARN, "/home/t", ()),
            (CatalogKind.GLUE, "", "s3://b/t", ("s3://b",)),
            (CatalogKind.GLUE, "s3://lake/wh", "s3://b/t", ("s3://b",)),
            (CatalogKind.GLUE, "file:///data", "/data/t", ()),
        ],
    )
    def test_the_default_comes_from_the_warehouse(
        self, kind: CatalogKind, warehouse: str, location: str, prefixes: tuple[str, ...]
    ) -> None:
        found = bound(kind, warehouse, location)
        assert (found.prefixes, found.from_operator) == (prefixes, False)

    @pytest.mark.parametrize(
        "bucket",
        [
            "ap-8tyekmigicmhun8n9kwpfur39dnw4use1a-s3alias",
            "fsx-gdtyw3hvwmbq8nhbd3wbmwxegoxgqeuc1a-ext-s3alias",
            "ol-lg7zgw2uzk8bzu4mnz8qjpf8eer1euw1a--ol-s3",
            "ap--use1-az4--xa-s3",
            "op-hqgdfbl3cw--op-s3",
            "mfzwi23gnjvgw.mrap",
            "AP-S3ALIAS",
            "arn:aws:s3:us-east-1:111122223333:accesspoint",
            "arn:aws-cn:s3:cn-north-1:111122223333:accesspoint:ap",
        ],
    )
    def test_an_access_point_is_allowed_only_if_the_operator_names_it(self, bucket: str) -> None:
        """(rule: second-names-of-buckets)."""
        spelled, location = f"s3://{bucket}", f"s3://{bucket}/ns/t/metadata/1.json"
        why = f"{location} was not accessed: {spelled} is an access point, a second name of a bucket"
        for kind, warehouse, rules in (
            (CatalogKind.GLUE, "", ""),
            (CatalogKind.GLUE, "s3://lake/wh", f"lake.hr={spelled}/"),
            (CatalogKind.GLUE, f"{spelled}2/wh", ""),
            (CatalogKind.REST, "demo", ""),
            (CatalogKind.SQL, "", ""),
            (CatalogKind.REST, ARN, ""),
        ):
            with pytest.raises(LocationRefused, match=re.escape(why)):
                bound(kind, warehouse, location, rules).require([location])
        for kind, warehouse, rules in (
            (CatalogKind.GLUE, f"{spelled}/wh", ""),
            (CatalogKind.SQL, spelled, ""),
            (CatalogKind.GLUE, "", f"*=s3://lake/,{spelled}/ns"),
            (CatalogKind.GLUE, "", f"lake.sales={spelled};*=s3://lake"),
        ):
            assert bound(kind, warehouse, location, rules).allows(location)

    def test_a_namespace_does_not_turn_a_rule_into_an_access_point(self) -> None:
        rules, location = "*=s3://lake-{namespace}/", "s3://lake-x-s3alias/t"
        assert bound(CatalogKind.GLUE, "", location, rules, ("x-s3alias",)).prefixes == ()
        assert bound(CatalogKind.GLUE, "", location, rules, ("x",)).prefixes == ("s3://lake-x",)

    @pytest.mark.parametrize("bucket", ["b--use1-az4--x-s3", "x--table-s3", "s3alias", "b-s3alias-logs", "arn"])
    def test_a_name_that_only_resembles_an_access_point_is_a_bucket(self, bucket: str) -> None:
        assert bound(CatalogKind.GLUE, "", f"s3://{bucket}/t").prefixes == (f"s3://{bucket}",)

    def test_a_matching_rule_replaces_the_default(self) -> None:
        found = bound(CatalogKind.SQL, "s3://lake/wh", "s3://lake/wh/t", "lake.sales=s3://b/x")
        assert (found.prefixes, found.from_operator) == (("s3://b/x",), True)
        other = bound(CatalogKind.SQL, "s3://lake/wh", "s3://lake/wh/t", "lake.hr=s3://b/x")
        assert (other.prefixes, other.from_operator) == (("s3://lake/wh",), False)


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "inside"),
        [
            ("s3://b/x/data/f.parquet", True),
            ("s3a://b/x/data/f.parquet", True),
            ("s3n://b/x/data/f.parquet", True),
            ("S3://b/x/data/f.parquet", True),
            ("s3://b/x", True),
            ("s3://b/x/", True),
            ("s3://b/x//t/f", True),
            ("s3://b/x/%2e%2e/f", True),
            ("s3://b/x/%41/f", True),
            ("s3://b/xy/f.parquet", False),
            ("s3://b//x/f.parquet", False),
            ("s3://b/%78/f.parquet", False),
            ("s3://b/x/../y/f.parquet", False),
            ("s3://b/x/./f.parquet", False),
            ("s3://B/x/f.parquet", False),
            ("s3://c/x/f.parquet", False),
            ("s3://b", False),
            ("s3://b/", False),
            ("gs://b/x/f", False),
            ("b/x/f", False),
            ("file:///b/x/f", False),
            ("", False),
        ],
    )
    def test_a_path_is_inside_if_its_real_target_is(self, path: str, *, inside: bool) -> None:
        for prefix in ("s3://b/x", "s3://b/x/", "s3a://b/x"):
            assert AllowedLocations((prefix,), True).allows(path) is inside

    def test_a_prefix_may_be_a_whole_bucket(self) -> None:
        whole = AllowedLocations(("s3://b",), False)
        assert whole.allows("s3a://b/any/f")
        assert whole.allows("s3://b")
        assert whole.allows("s3://b//f")
        assert not whole.allows("s3://bc/any/f")
        assert not whole.allows("s3://b/../c/f")

    def test_local_spellings_and_links_are_resolved(self, tmp_path: Path) -> None:
        real, link = tmp_path / "real", tmp_path / "link"
        (real / "t").mkdir(parents=True)
        (tmp_path / "private").mkdir()
        link.symlink_to(real)
        (real / "out").symlink_to(tmp_path / "private")
        for warehouse in (str(real), real.as_uri(), f"file:{real}/", str(link), f"{link.as_uri()}/"):
            found = AllowedLocations((warehouse,), False)
            for path in (
                f"{real}/t/f",
                f"file:{real}/t/f",
                f"{real.as_uri()}/t//f",
                f"{link}/t/f",
                f"{link}/t/../t/f",
                str(link),
            ):
                assert found.allows(path), (warehouse, path)
            for path in (
                f"{real}/out/f",
                f"{link}/out",
                f"{real}/../private/f",
                f"{real}x/f",
                f"{tmp_path}",
                f"s3:/{real}/f",
                f"{real}/t/%2e%2e/../../../private",
            ):
                assert not found.allows(path), (warehouse, path)


class TestRefusal:
    def test_a_refusal_prints_the_whole_rule_of_a_default(self) -> None:
        refusing = bound(CatalogKind.SQL, "s3://lake/wh", "s3://lake/wh/t", "other.x=s3://o; ")
        refusing.require(["s3://lake/wh/t/f"])
        with pytest.raises(LocationRefused) as refused:
            refusing.require(["s3://lake/wh/t", "s3://b/z/data/day=1/h=2/f.parquet", "s3://b/z", "s3://c/y.db/"])
        assert str(refused.value) == (
            "s3://b/z/data/day=1/h=2/f.parquet is outside s3://lake/wh, where a table of its catalog may have files"
            f" unless {ALLOWED_PREFIXES} allows more; nothing was accessed; if it is this table's own, set"
            f" {ALLOWED_PREFIXES}='lake.sales=s3://lake/wh,s3://b/z,s3://c/y.db;other.x=s3://o'"
        )

    def test_few_folders_admit_many_files_elsewhere(self) -> None:
        refusing = bound(CatalogKind.SQL, "s3://lake/wh", "s3://lake/wh/t")
        hashed = [f"s3://b/t/data/{n:04b}/0000/1111/{n:08b}/day={n}/f.parquet" for n in range(16)]
        with pytest.raises(LocationRefused, match=r"='lake\.sales=s3://lake/wh,s3://b/t/data'$"):
            refusing.require(hashed)
        with pytest.raises(LocationRefused) as refused:
            refusing.require(f"s3://b/{n:05}/f.parquet" for n in range(20_000))
        assert str(refused.value).endswith(",s3://b/00006,s3://b/00007'")

    def test_the_printed_rule_admits_the_refused_files(self) -> None:
        refusing = bound(CatalogKind.SQL, "s3://lake/wh", "s3://lake/wh/t", "*.hr=s3://o")
        with pytest.raises(LocationRefused) as refused:
            refusing.require(["s3://b/z/data/f.parquet"])
        rules = str(refused.value).split(f"{ALLOWED_PREFIXES}='")[1].removesuffix("'")
        admitting = bound(CatalogKind.SQL, "s3://lake/wh", "s3://lake/wh/t", rules)
        admitting.require(["s3://b/z/data/f.parquet", "s3://b/z/data/g.parquet", "s3://lake/wh/t/f"])
        assert admitting.from_operator
        assert allowed(rules, namespace=("hr",)) == ("s3://o",)

    @pytest.mark.parametrize(
        "path",
        [
            "s3://other/my db/t/metadata/00001-a.metadata.json",
            "s3://other/my db/t/metadata/00001-a.gz.metadata.json",
            "s3a://other/my db/t/metadata/00001-a.metadata.json",
        ],
    )
    def test_a_single_rule_admits_a_whole_table_with_a_refused_metadata_file(self, path: str) -> None:
        refusing = bound(CatalogKind.SQL, "s3://my lake/wh", path)
        with pytest.raises(LocationRefused) as refused:
            refusing.require([path])
        rules = str(refused.value).split(f"{ALLOWED_PREFIXES}='")[1].removesuffix("'")
        assert rules == f"lake.sales=s3://my lake/wh,{path.partition('://')[0]}://other/my db/t"
        bound(CatalogKind.SQL, "s3://my lake/wh", path, rules).require([path, "s3://other/my db/t/data/f.parquet"])

    @pytest.mark.parametrize("path", ["/metadata/1.metadata.json", "file:///metadata/1.metadata.json"])
    def test_a_metadata_file_at_the_top_admits_no_whole_store(self, path: str) -> None:
        for item in (path, f"s3://z{path.removeprefix('file://')}"):
            with pytest.raises(LocationRefused, match=rf",{item.rpartition('/')[0]}'$"):
                AllowedLocations(("s3://b/x",), False, "lake.sales").require([item])

    def test_the_printed_rule_replaces_the_matching_rule(self) -> None:
        with pytest.raises(LocationRefused, match=r"s3://b/z/f is outside s3://b/x and s3://b/y, where ICEKEEPER"):
            AllowedLocations(("s3://b/x", "s3://b/y"), True).require(["s3://b/x/f", "s3://b/z/f"])
        rules = "lake.sales = s3://b/x; lake.hr=s3://b/hr"
        with pytest.raises(LocationRefused, match=r"='lake\.sales=s3://b/x,s3://z/t;lake\.hr=s3://b/hr'$"):
            bound(CatalogKind.SQL, "s3://lake/wh", "s3://b/x/t", rules).require(["s3://z/t"])
        refusing = bound(CatalogKind.GLUE, "", "s3://a;*=s3:,b/t/metadata/1.json")
        with pytest.raises(LocationRefused, match=f"no rule of {ALLOWED_PREFIXES} can name only this file"):
            refusing.require(["s3://z"])

    @pytest.mark.parametrize("folder", ["..", "."])
    def test_no_rule_admits_dots(self, folder: str) -> None:
        with pytest.raises(LocationRefused, match=r"; no rule can admit it, because it has a folder '\.' or '\.\.'$"):
            AllowedLocations(("s3://b/x",), True).require([f"s3://z/{folder}/f"])

    @pytest.mark.parametrize(
        "path", ["a;*=s3:/x", "a,s3:", "{namespace}", "a\nb", "a\u202eb", "victim ", "a\tb", "a\xa0b"]
    )
    def test_no_rule_is_printed_that_would_admit_other_files(self, path: str) -> None:
        with pytest.raises(
            LocationRefused, match=f"no rule of {ALLOWED_PREFIXES} can name only this file; if it is"
        ) as refused:
            AllowedLocations(("s3://b/x",), True).require([f"s3://z/{path}"])
        assert f"set {ALLOWED_PREFIXES}" not in str(refused.value)

    @pytest.mark.parametrize(
        "levels", [("a;*=s3://,b",), ("????",), ("*",), ("[a-z]",), ("victim.private",), ("a", ""), ()]
    )
    def test_no_rule_is_printed_that_would_match_other_namespaces(self, levels: tuple[str, ...]) -> None:
        refusing = bound(CatalogKind.REST, "s3://lake", "s3://lake/t", namespace=levels)
        with pytest.raises(LocationRefused, match=f"no rule of {ALLOWED_PREFIXES} can name only this file") as refused:
            refusing.require(["s3://z"])
        assert f"set {ALLOWED_PREFIXES}" not in str(refused.value)


# A store within a table's bound: no method reaches outside, not even through a link that appears during a call.

METHODS: dict[str, Callable[[Storage, str], object]] = {
    "read": lambda s, path: s.read(path),
    "read_start": lambda s, path: s.read_start(path),
    "read_end": lambda s, path: s.read_end(path, 4),
    "write": lambda s, path: s.write(path, b"theirs"),
    "open_input": lambda s, path: s.open_input(path).read(),
    "open_input of a small one": lambda s, path: s.open_input(path, 10),
    "open_output": lambda s, path: s.open_output(path),
    "size": lambda s, path: s.size(path),
    "list": lambda s, path: list(s.list(path)),
    "list_unread": lambda s, path: list(s.list_unread(path)),
    "list_if_allowed": lambda s, path: s.list_if_allowed(path),
    "divide": lambda s, path: s.divide(path),
    "folders_in": lambda s, path: s.folders_in(path),
    "list_folder": lambda s, path: list(s.list_folder(path)),
    "status": lambda s, path: s.status(path),
    "can_list": lambda s, path: s.can_list(path),
    "can_delete": lambda s, path: s.can_delete(path),
    "is_in_lakefs": lambda s, path: s.is_in_lakefs(f"s3://elsewhere/{path}"),
    "require": lambda s, path: s.require([path]),
    "s3_at": lambda s, path: s.s3_at(path),
    "bounded_output": lambda s, path: bounded_output(s, path).__enter__(),
    "assemble": lambda s, path: assemble(s, path, ()),
    "older_versions": lambda s, path: s.older_versions(path),
    "open_version": lambda s, path: s.open_version(ListedObject(path, 4, None, version="1")).read(),
    "direct_reads": lambda s, path: direct_reads(s)(ObjectRange(path, None, 0, 4)),
}
# Methods that raise nothing, or take no path.
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


def test_every_method_is_tested() -> None:
    public = {name for name in vars(Storage) if not name.startswith("_")}
    assert public == {name for name in METHODS if name in public} | OTHERS


def bounded(*prefixes: str) -> Storage:
    return Storage(AllowedLocations(prefixes, False).put_into(KEYS))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("as_worker", [False, True], ids=["here", "in a worker"])
def test_no_method_of_a_store_reaches_outside_the_bound(tmp_path: Path, method: str, *, as_worker: bool) -> None:
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
        with pytest.raises(LocationRefused, match="is outside"):
            METHODS[method](used, outside)
    assert (private / "secret").read_bytes() == b"secret"
    assert [path.name for path in private.iterdir()] == ["secret"]


def test_deletion_reports_and_keeps_files_outside(tmp_path: Path) -> None:
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
    assert all("is outside" in reason for reason in report.failed.values())
    (private / "empty").mkdir()
    assert not store.remove_if_empty(str(private / "empty"))
    assert not store.remove_if_empty(f"{inside}/link/empty")
    assert sorted(path.name for path in private.iterdir()) == ["a", "b", "empty"]
    assert [path.name for path in inside.iterdir()] == ["link"]


def test_the_clock_of_a_store_outside_is_not_read_and_a_pipe_is_refused(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    assert store_now_ms(bounded(str(tmp_path / "wh")), str(private), may_write=True) is None
    assert list(private.iterdir()) == []
    os.mkfifo(tmp_path / "f.parquet")
    with pytest.raises(StorageError, match="is not a regular file"):
        bounded(str(tmp_path)).read(str(tmp_path / "f.parquet"))


def test_a_warehouse_behind_a_link_is_inside(tmp_path: Path) -> None:
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


def test_each_file_that_a_deletion_keeps_has_its_own_reason(tmp_path: Path) -> None:
    folder, private = tmp_path / "wh" / "t", tmp_path / "private"
    (folder / "inner").mkdir(parents=True)
    private.mkdir()
    (private / "secret").touch()
    (folder / "own").touch()
    (folder / "also").touch()
    (folder / "out").symlink_to(private / "secret")
    (folder / "in").symlink_to(folder / "also")
    names = ("own", "gone", "in", "inner", "out", "no\0name", "../../private/secret", "absent/f")
    paths = {name: f"{folder}/{name}" for name in names}
    report = bounded(str(tmp_path / "wh")).delete(paths.values())
    assert report.deleted == tuple(paths[name] for name in ("own", "gone", "in", "absent/f"))
    assert [*map(str.lower, (report.failed[paths["inner"]], report.failed[paths["no\0name"]]))] == [
        "is a directory",
        "embedded null byte",
    ]
    for name in ("out", "../../private/secret"):
        assert "is outside" in report.failed[paths[name]]
    assert sorted(entry.name for entry in folder.iterdir()) == ["also", "inner", "out"]
    assert (private / "secret").exists()


ATTACKED: dict[str, Callable[[Storage, str], Any]] = {
    "read": lambda s, path: s.read(path),
    "open_input": lambda s, path: s.open_input(path).read(),
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
    """A local file is used through the checked folder (rule: use-the-checked-folder)."""
    folder, private = tmp_path / "wh" / "t" / "data", tmp_path / "private"
    folder.mkdir(parents=True)
    private.mkdir()
    (private / "f").write_bytes(b"secret")
    (private / "empty").mkdir()
    name = "empty" if method == "remove_if_empty" else "f"
    if method != "remove_if_empty":
        (folder / "f").write_bytes(b"own")

    check = AllowedLocations.allows_real

    def swapped(bound: AllowedLocations, real: str) -> bool:
        """The tenant acts once the path has been checked."""
        allowed = check(bound, real)
        monkeypatch.undo()
        if of_file and name == "f":
            os.unlink(folder / "f")
            (folder / "f").symlink_to(private / "f")
        else:
            os.rename(folder, tmp_path / "before")
            folder.symlink_to(private)
        return allowed

    monkeypatch.setattr(AllowedLocations, "allows_real", swapped)
    try:
        found = ATTACKED[method](bounded(str(tmp_path / "wh")), str(folder / name))
    except StorageError:
        found = None
    if method in ("write", "open_output") and of_file:
        assert not (folder / "f").is_symlink(), "the link was replaced"
    elif method.startswith(("read", "open_input")):
        assert found == b"own", "the checked file was read"
    else:
        assert not found
    assert (private / "f").read_bytes() == b"secret"
    assert sorted(path.name for path in private.iterdir()) == ["empty", "f"]


def test_the_bound_is_passed_with_the_properties_but_not_to_pyiceberg() -> None:
    made = AllowedLocations(("s3://b/x",), True, "lake.sales", "*=s3://b/x", "")
    assert AllowedLocations.of(made.put_into({"s3.endpoint": "e"})) == made
    assert made.put_into(AllowedLocations((), False).put_into({})) == made.put_into({})
    assert ALLOWED_LOCATIONS not in bounded("s3://lake")._properties
    path = "abfs://lake@account.dfs.core.windows.net/t/f"
    with pytest.raises(StorageError, match=r"^abfs://lake@.* cannot be reached with .*; set .* adls\.account-name$"):
        Storage({}).read(path)
