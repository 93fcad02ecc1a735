"""Where a deployment allows the files of its tables."""

from __future__ import annotations

import pytest

from icekeeper.errors import OperationRefused, PolicyError
from icekeeper.pass_context.allowed_locations import is_allowed, require_allowed
from icekeeper.policy.allowed_prefixes import ALLOWED_PREFIXES, allowed_prefixes


def allowed(text: str, catalog: str = "lake", namespace: tuple[str, ...] = ("sales",)) -> tuple[str, ...] | None:
    return allowed_prefixes({ALLOWED_PREFIXES: text}, catalog, namespace)


def test_a_deployment_without_rules_sets_no_bound() -> None:
    assert allowed_prefixes({}, "lake", ("sales",)) is None
    assert allowed("") is None
    assert allowed(" ; ") is None


def test_the_first_rule_that_fits_holds() -> None:
    rules = "lake.sales=s3://a/,s3://b/x;lake.s*=s3://c;*=s3://{catalog}/{namespace}"
    assert allowed(rules) == ("s3://a", "s3://b/x")
    assert allowed(rules, namespace=("support",)) == ("s3://c",)
    assert allowed(rules, namespace=("hr", "pay")) == ("s3://lake/hr.pay",)
    assert allowed(rules, catalog="other") == ("s3://other/sales",)
    assert allowed("lake.hr=s3://a") is None


@pytest.mark.parametrize("text", ["s3://a", "lake=", "=s3://a", "lake=a/b", "lake=,"])
def test_a_malformed_rule_is_an_error_that_shows_how(text: str) -> None:
    with pytest.raises(PolicyError, match=ALLOWED_PREFIXES):
        allowed(text)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("s3://b/x/data/f.parquet", True),
        ("s3a://b/x/data/f.parquet", True),
        ("s3://b/x", True),
        ("s3://b/x/", True),
        ("s3://b/xy/f.parquet", False),
        ("s3://b/x/../y/f.parquet", False),
        ("s3://c/x/f.parquet", False),
    ],
)
def test_a_path_is_inside_by_what_it_really_names(path: str, *, inside: bool) -> None:
    assert is_allowed(path, ("s3://b/x",)) is inside
    assert is_allowed(path, None)


def test_the_refusal_names_the_file_and_what_is_allowed() -> None:
    require_allowed(["s3://b/x/f"], ("s3://b/x", "s3://b/y"))
    with pytest.raises(OperationRefused, match=r"s3://b/z/f lies outside s3://b/x and s3://b/y"):
        require_allowed(["s3://b/x/f", "s3://b/z/f"], ("s3://b/x", "s3://b/y"))
