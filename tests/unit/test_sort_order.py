"""Sort orders as text and as table metadata become recipes; errors name the wrong part and the correction."""

from __future__ import annotations

import time
from typing import Any

import pytest

from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn, choose_recipe
from icekeeper.policy import Strategy
from icekeeper.policy.values import SortTerm, parse_sort_order
from support.plans import MB, policy, table
from support.settings import refusal

COLUMNS = {
    "id": "long",
    "name": "string",
    "at": "timestamp",
    "day": "date",
    "price": "decimal(9, 2)",
    "score": "double",
    "flag": "boolean",
}
FIELDS: list[dict[str, Any]] = [
    {"id": i, "name": name, "required": False, "type": kind} for i, (name, kind) in enumerate(COLUMNS.items(), start=1)
]
FIELDS += [
    {
        "id": 20,
        "name": "place",
        "required": False,
        "type": {"type": "struct", "fields": [{"id": 21, "name": "city", "required": False, "type": "string"}]},
    },
    {
        "id": 30,
        "name": "tags",
        "required": False,
        "type": {"type": "list", "element-id": 31, "element": "string", "element-required": False},
    },
]


def made(*order: dict[str, Any], order_id: int = 3) -> Any:
    """A table whose default sort order has these fields."""
    more: dict[str, Any] = {"schemas": [{"type": "struct", "schema-id": 0, "fields": FIELDS}]}
    if order:
        more |= {
            "default-sort-order-id": order_id,
            "sort-orders": [{"order-id": 0, "fields": []}, {"order-id": order_id, "fields": list(order)}],
        }
    return table(**more)


def ordered(source: int, transform: str = "identity", *, descending: bool = False, nulls_first: bool = True) -> Any:
    return {
        "source-id": source,
        "transform": transform,
        "direction": "desc" if descending else "asc",
        "null-order": "nulls-first" if nulls_first else "nulls-last",
    }


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("k", [SortTerm("k", "identity", False, True)]),
        ("k asc nulls last", [SortTerm("k", "identity", False, False)]),
        ("k DESC", [SortTerm("k", "identity", True, False)]),
        ("k Nulls First", [SortTerm("k", "identity", False, True)]),
        (
            "k asc nulls last, bucket(16, id) desc nulls first",
            [SortTerm("k", "identity", False, False), SortTerm("id", "bucket[16]", True, True)],
        ),
        (
            "days(at),truncate(4,`odd, name`)",
            [SortTerm("at", "day", False, True), SortTerm("odd, name", "truncate[4]", False, True)],
        ),
        (
            '"desc" desc, place.city',
            [SortTerm("desc", "identity", True, False), SortTerm("place.city", "identity", False, True)],
        ),
    ],
)
def test_a_sort_order_is_parsed_with_icebergs_defaults(text: str, terms: list[SortTerm]) -> None:
    """Nulls come first when ascending and last when descending unless the text says otherwise."""
    assert list(parse_sort_order(text)) == terms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k, ", "a term is missing beside a comma"),
        (",k", "a term is missing beside a comma"),
        ("k,,j", "a term is missing beside a comma"),
        ("k asx", "'k asx' is not a sort term; write COLUMN or TRANSFORM(COLUMN), then asc or desc, then nulls first"),
        ("a, k desc nulls", "'k desc nulls' is not a sort term"),
        ("bucket(16, id", "'bucket(16, id' is not a sort term"),
        ("bucket(id)", "'bucket(id)' needs a whole number above 0: write bucket(16, COLUMN)"),
        ("truncate(0, id)", "'truncate(0, id)' needs a whole number above 0: write truncate(16, COLUMN)"),
        ("lower(id)", "'lower' in 'lower(id)' is not a transform; use bucket, truncate, identity, year"),
        ("day(4, at)", "'day(4, at)' takes no number: write day(COLUMN)"),
    ],
)
def test_a_malformed_sort_order_is_refused_by_the_policy_with_the_bad_part(text: str, message: str) -> None:
    found = refusal(sort_order=text)
    assert found.startswith(f"policy key sort_order cannot be '{text}' (from this call): ")
    assert message in found


def test_auto_sorts_a_table_that_has_an_order_and_merges_others() -> None:
    assert choose_recipe(made(), policy()) is None
    assert choose_recipe(made(ordered(1)), policy(strategy="binpack")) is None
    found = choose_recipe(made(ordered(2, descending=True), ordered(1, "bucket[4]")), policy())
    assert found == ClusterRecipe(
        Strategy.SORT, (KeyColumn(2, "identity", True, True), KeyColumn(1, "bucket[4]")), 256 * MB, 192 * MB, order_id=3
    )


def test_the_policys_order_precedes_the_tables_order_and_has_no_id() -> None:
    """Only the table's own order has a ``sort_order_id``."""
    found = choose_recipe(made(ordered(1)), policy(sort_order="place.city desc"))
    assert found is not None
    assert (found.columns, found.order_id) == ((KeyColumn(21, "identity", True, False),), None)


def test_void_terms_are_ignored() -> None:
    found = choose_recipe(made(ordered(1, "void"), ordered(2)), policy())
    assert found is not None
    assert found.columns == (KeyColumn(2),)
    assert choose_recipe(made(ordered(1, "void")), policy()) is None


@pytest.mark.parametrize(
    "field",
    [ordered(1, "zorder"), ordered(99), ordered(31), {**ordered(1), "source-ids": [1, 2]}, ordered(6, "bucket[4]")],
    ids=["unknown transform", "dropped column", "in a list", "two columns", "float in buckets"],
)
def test_an_order_that_cannot_be_applied_is_refused_and_left_alone_by_auto(field: dict[str, Any]) -> None:
    """``auto`` merges such a table as if it had no order."""
    with pytest.raises(TableUnsupported, match="which this version of Icekeeper cannot apply; set sort_order or"):
        choose_recipe(made(field), policy(strategy="sort"))
    assert choose_recipe(made(field), policy()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "sort"}, "strategy sort needs an order and the table has none; set sort_order, for example"),
        (
            {"strategy": "sort", "sort_order": "nmae"},
            "sort_order names column 'nmae', which does not exist in the table or cannot be sorted (did you mean "
            "'name'?); its columns are id, name, at, day, price, score, flag, place.city",
        ),
        (
            {"strategy": "sort", "sort_order": "tags"},
            "sort_order names column 'tags', which does not exist in the table or",
        ),
        (
            {"strategy": "sort", "sort_order": "hour(day)"},
            "sort_order: hour cannot be applied to column day of type date",
        ),
        (
            {"strategy": "sort", "sort_order": "bucket(4, score)"},
            "sort_order: bucket[4] cannot be applied to column score of type double",
        ),
        ({"strategy": "zorder", "sort_order": "id,xx"}, "sort_order names column 'xx', which does not exist"),
        (
            {"strategy": "zorder", "sort_order": "id,id"},
            "strategy zorder takes plain columns, each once and without direction or transform, but sort_order is "
            "'id,id'",
        ),
        ({"strategy": "zorder", "sort_order": "id desc"}, "strategy zorder takes plain columns, each once and without"),
        ({"strategy": "zorder"}, "strategy zorder needs columns and the table has no sort order; set sort_order, for"),
    ],
)
def test_an_impossible_recipe_raises_a_clear_error(settings: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        choose_recipe(made(), policy(**settings))
    assert str(caught.value).startswith(message)


def test_a_curve_has_at_most_31_columns() -> None:
    names = [f"c{number}" for number in range(1, 33)]
    fields = [{"id": i, "name": name, "required": False, "type": "long"} for i, name in enumerate(names, start=1)]
    wide = table(schemas=[{"type": "struct", "schema-id": 0, "fields": fields}])
    with pytest.raises(
        PolicyError, match=r"^strategy zorder has 32 columns; at most 31 are allowed, and 2 to 4 work best"
    ):
        choose_recipe(wide, policy(strategy="zorder", sort_order=",".join(names)))


def test_a_curve_uses_the_columns_of_the_tables_order_unless_the_policy_names_others() -> None:
    """S3 Tables does the same; a repeated column counts once."""
    own = made(ordered(2, descending=True), ordered(1, "bucket[4]"), ordered(2))
    assert [choose_recipe(own, policy(strategy="zorder", **more)) for more in ({}, {"sort_order": "name,id"})] == [
        ClusterRecipe(Strategy.ZORDER, (KeyColumn(2), KeyColumn(1)), 256 * MB, 192 * MB)
    ] * 2


def text_of(**settings: object) -> str:
    found = choose_recipe(made(), policy(**settings))
    assert found is not None
    return found.text


def test_the_text_of_a_recipe_distinguishes_every_layout() -> None:
    """It names columns by id, so that a rename does not sort a table again."""
    order = "name desc, bucket(4, id) nulls last"
    assert text_of(strategy="sort", sort_order=order) == (
        f"sort(2 identity desc nulls-last, 1 bucket[4] asc nulls-last) target={256 * MB}"
    )
    assert text_of(strategy="zorder", sort_order="name,id") == f"zorder(2, 1) target={256 * MB}"
    texts = {text_of(sort_order=order) for order in ("id", "id desc", "id nulls last", "name", "id, name", "name, id")}
    texts |= {text_of(strategy="zorder", sort_order=columns) for columns in ("id", "id,name", "name,id")}
    texts.add(text_of(sort_order="id", target_file_size_mb="128"))
    assert len(texts) == 10


@pytest.mark.parametrize(
    ("megabytes", "count"), [(1, 1), (149, 1), (150, 2), (249, 2), (251, 3), (1000, 10), (1049, 10), (1051, 11)]
)
def test_the_number_of_outputs_brings_their_size_closest_to_the_target(megabytes: int, count: int) -> None:
    recipe = ClusterRecipe(Strategy.SORT, (), 100, 75)
    assert recipe.output_count(megabytes) == count


@pytest.mark.parametrize(
    ("megabytes", "count"), [(1, 1), (149, 1), (150, 2), (299, 2), (300, 4), (1000, 8), (1200, 16)]
)
def test_outputs_along_a_curve_are_a_power_of_two(megabytes: int, count: int) -> None:
    assert ClusterRecipe(Strategy.ZORDER, (), 100, 75).output_count(megabytes) == count


def test_outputs_are_small_only_if_unavoidable() -> None:
    """With a small-file limit near the target there are fewer, larger outputs."""
    assert ClusterRecipe(Strategy.SORT, (), 100, 99).output_count(260) == 2


@pytest.mark.parametrize("part", ["(", "a(", '"', "`", "a,", ",", " ", "a "])
def test_a_text_of_a_megabyte_is_refused_at_once(part: str) -> None:
    """The text is a table property; brackets took nine minutes to parse."""
    begun_s = time.process_time()
    with pytest.raises(ValueError, match=r"is not a sort term|a term is missing"):
        parse_sort_order(part * (1_000_000 // len(part)))
    assert time.process_time() - begun_s < 2
