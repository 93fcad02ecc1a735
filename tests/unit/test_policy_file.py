"""The policy file: which rules fit which table, which of them wins, and what a file must not say."""

from __future__ import annotations

import pytest

from icekeeper.errors import PolicyError
from icekeeper.policy import layers_for, resolve
from icekeeper.policy.policy_file import parse_policy_file

FILE = """
# comments are allowed
rules:
- settings:
    snapshot_retention_hours: 100
    min_input_files: 3
- bucket: prod-*, live
  namespace: analytics.*
  table: events_?
  settings:
    min_input_files: 7
- table: "*_tmp"
  settings:
    maintenance_enabled: no
"""
ARN = "arn:aws:s3tables:us-east-1:111122223333:bucket/prod-eu"


def settings_of(text: str, warehouse: str, namespace: str, table: str) -> list[tuple[str, dict[str, object]]]:
    return [
        (layer.source, dict(layer.values)) for layer in parse_policy_file(text, "F").layers(warehouse, namespace, table)
    ]


FIRST = ("policy file F rule 1 (*/*/*)", {"snapshot_retention_hours": "100", "min_input_files": "3"})
SECOND = ("policy file F rule 2 (prod-*,live/analytics.*/events_?)", {"min_input_files": "7"})
GOOD = FILE.replace("maintenance_enabled: no", "maintenance_enabled: false")
THIRD = ("policy file F rule 3 (*/*/*_tmp)", {"maintenance_enabled": "false"})


@pytest.mark.parametrize(
    ("table", "rules"),
    [
        ((ARN, "analytics.web", "events_1"), [FIRST, SECOND]),
        (("s3://live", "analytics.web", "events_1"), [FIRST, SECOND]),
        (("s3://live/folder", "analytics.web", "events_1"), [FIRST, SECOND]),
        ((ARN, "analytics.web", "events_12"), [FIRST]),  # ? is one character
        ((ARN, "analytics", "events_1"), [FIRST]),
        (("arn:aws:s3tables:us-east-1:1:bucket/test", "analytics.web", "events_1"), [FIRST]),
        (("file:///data/warehouse", "ns", "x_tmp"), [FIRST, THIRD]),
        ((ARN, "analytics.web", "Events_1"), [FIRST]),  # case matters
    ],
)
def test_a_rule_fits_where_all_of_its_patterns_do(table: tuple[str, str, str], rules: list[object]) -> None:
    assert settings_of(GOOD, *table) == rules


def test_brackets_are_no_wildcards() -> None:
    text = "rules:\n- table: 't[12]'\n  settings:\n    min_input_files: 3\n"
    assert [bool(settings_of(text, "w", "n", name)) for name in ("t1", "t[12]")] == [False, True]


def test_later_rules_win_over_earlier_ones_and_the_deployment_and_lose_against_the_table() -> None:
    rules = parse_policy_file(GOOD, "F").layers(ARN, "analytics.web", "events_1")
    environment = {"ICEKEEPER_MIN_INPUT_FILES": "9", "ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "120"}
    resolved = resolve(layers_for({}, environment, {}, rules=rules))
    assert (resolved.policy.min_input_files, resolved.sources["min_input_files"]) == (7, SECOND[0])
    assert resolved.policy.snapshot_retention_hours == 120
    assert resolved.sources["snapshot_retention_hours"] == "bound ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS"
    own = {"history.expire.max-snapshot-age-ms": str(200 * 3_600_000), "icekeeper.min_input_files": "11"}
    resolved = resolve(layers_for(own, environment, {}, rules=rules))
    assert (resolved.policy.min_input_files, resolved.policy.snapshot_retention_ms) == (11, 200 * 3_600_000)


def test_every_value_is_text_as_after_set() -> None:
    settings = {"target_file_size_mb": "1.50", "operations": "compact, expire_snapshots", "where": "d > '2024-01-01'"}
    lines = "".join(f"    {key}: {value}\n" for key, value in settings.items())
    ((_, values),) = settings_of(f"rules:\n- settings:\n{lines}", "w", "n", "t")
    assert values == settings


def test_a_file_may_be_without_rules() -> None:
    assert settings_of("rules:\n# none yet\n", "w", "n", "t") == []


RULE = "rules:\n- settings:\n    min_input_files: 3\n"
WRONG = {
    "empty": ("", "policy file F has no rules: it must begin with 'rules:', then a list of rules"),
    "a list": ("- settings:\n    min_input_files: 3\n", "policy file F has no rules: it must begin with"),
    "no YAML": ("rules: [\n", "policy file F: line "),
    "flow style": ("rules: {a: 1}\n", "policy file F: line "),
    "a key twice": (RULE + "    min_input_files: 4\n", "policy file F: line "),
    "a tab": ("rules:\n\t- a\n", "policy file F: line "),
    "control characters": ("rules:\n- settings:\n    where: \x00\n", "policy file F"),
    "bounds": (RULE + "bounds:\n  a: b\n", "policy file F cannot set bounds: they are the deployment's"),
    "another field": (RULE + "rule:\n  a: b\n", "policy file F has an unknown field 'rule' (did you mean 'rules'?)"),
    "rules are no list": ("rules: all\n", "policy file F: rules must be a list, each rule beginning with '- '"),
    "a rule is text": ("rules:\n- x\n", "policy file F rule 1 must be fields of bucket, namespace, table, settings"),
    "unknown field": (
        RULE + "  tabel: x\n",
        "policy file F rule 1 has an unknown field 'tabel' (did you mean 'table'?); fields are bucket, namespace, "
        "table, settings",
    ),
    "setting beside settings": (
        RULE + "  strategy: sort\n",
        "policy file F rule 1 has an unknown field 'strategy'; fields are bucket, namespace, table, settings; settings "
        "stand below 'settings:'",
    ),
    "no settings": ("rules:\n- table: x\n", "policy file F rule 1 (*/*/x) needs 'settings:' and below it KEY: VALUE"),
    "empty settings": ("rules:\n- settings:\n", "policy file F rule 1 (*/*/*) needs 'settings:' and below it KEY"),
    "empty pattern": (
        RULE + "  table: a,,b\n",
        "policy file F rule 1 needs for table a comma-separated list of patterns (* and ?), for example prod-*",
    ),
    "a list of patterns": (RULE + "  table:\n  - a\n", "policy file F rule 1 needs for table a comma-separated list"),
    "a list of values": (
        "rules:\n- settings:\n    zorder_columns:\n    - a\n",
        "policy file F rule 1 (*/*/*) has no plain text for zorder_columns; lists are written with commas",
    ),
    "unknown key": (
        RULE + "- settings:\n    min_input_file: 3\n",
        "unknown policy key 'min_input_file' (from policy file F rule 2 (*/*/*)) (did you mean 'min_input_files'?); "
        "the nearest keys are min_input_files, bucket_filter, min_file_size_ratio",
    ),
    "wrong value": (
        FILE,
        "policy key maintenance_enabled cannot be 'no' (from policy file F rule 3 (*/*/*_tmp)): write true or false",
    ),
    "deployment only": (
        "rules:\n- settings:\n    table_filter: x\n",
        "policy file F rule 1 (*/*/*) cannot set table_filter: it is a setting of the deployment, as "
        "ICEKEEPER_TABLE_FILTER",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_mistake_refuses_the_file_and_names_its_place(wrong: tuple[str, str]) -> None:
    text, sentence = wrong
    with pytest.raises(PolicyError) as caught:
        parse_policy_file(text, "F")
    assert str(caught.value).startswith(sentence)
