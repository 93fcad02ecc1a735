"""The policy file: its locations, its absence, and its effect on commands."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import pytest

from icekeeper.api import Icekeeper
from icekeeper.errors import PolicyError, StorageError
from icekeeper.pass_context.table_policy import TablePolicies, policy_address, read_policy_file
from icekeeper.policy import Policy
from icekeeper.policy.policy_file import matching_layers, parse_policy_file, starter_file
from icekeeper.policy.values import text_of
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.command import Command, one_sentence
from support.proxies import closed_port

RULES = "rules:\n- table: t\n  settings:\n    maintenance_enabled: false\n    min_input_files: 8\n"
TABLE = ("w", "ns", "t")


def test_commands_apply_the_policy_file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table()
    command.table("ns.other")
    file = command.folder / "policy.yaml"
    file.write_text(RULES)
    monkeypatch.setenv("ICEKEEPER_POLICY_FILE", str(file))
    source = f"policy file {file} rule 1 (*/*/t)"
    shown = command("policy", "show", "ns.t", "--json").json["policy"]
    assert {k: v for k, v in shown.items() if v["source"] != "default"} == {
        "maintenance_enabled": {"value": False, "source": source},
        "min_input_files": {"value": 8, "source": source},
    }
    others = command("policy", "show", "ns.other", "--json").json["policy"]
    assert {v["source"] for v in others.values()} == {"default"}
    assert [proposal["table"] for proposal in command("detect", "--json").json["proposals"]] == ["ns.other"]
    outcome = command("maintain", "ns.t", "--engine", "local", "--json").json
    assert {part["reason"] for part in outcome["operations"]} == {f"maintenance is disabled ({source})"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "policy file <file> does not exist (ICEKEEPER_POLICY_FILE names it)"),
        ("rules:\n- settings:\n    nope: 1\n", "unknown policy key 'nope' (from policy file <file> rule 1 (*/*/*))"),
    ],
)
def test_a_wrong_policy_file_stops_every_command_that_applies_it(
    command: Command, monkeypatch: pytest.MonkeyPatch, text: str | None, sentence: str
) -> None:
    command.table()
    file = command.folder / "policy.yaml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("ICEKEEPER_POLICY_FILE", str(file))
    before = command.contents()
    for call in (
        ("maintain", "ns.t", "--engine", "local"),
        ("detect",),
        ("policy", "show", "ns.t"),
        ("policy", "set", "ns.t", "min_input_files=3"),
        ("orphans", "--bucket", command.warehouse.as_uri()),
        ("run", "--engine", "local"),
    ):
        answer = command(*call)
        assert (answer.code, answer.out) == (2, ""), call
        assert one_sentence(answer.err).startswith(sentence.replace("<file>", str(file)))
    assert command.contents() == before


def test_a_missing_object_means_that_there_are_no_rules(moto_server: MotoServer) -> None:
    s3, bucket, storage = moto_server.client("s3"), f"control-{uuid.uuid4()}", Storage(moto_server.s3_properties)
    s3.create_bucket(Bucket=bucket)
    address = f"s3://{bucket}/config/policy.yaml"
    assert read_policy_file(address, storage) == ()
    s3.put_object(Bucket=bucket, Key="config/policy.yaml", Body=RULES.encode())
    (layer,) = matching_layers(read_policy_file(address, storage), *TABLE)
    assert layer.source == f"policy file {address} rule 1 (*/*/t)"


def test_any_other_failure_to_read_the_policy_file_is_an_error(moto_server: MotoServer) -> None:
    """A missing bucket or a silent store must not count as no rules: more would be deleted."""
    with pytest.raises(StorageError, match="does not exist"):
        read_policy_file(f"s3://no-{uuid.uuid4()}/config/policy.yaml", Storage(moto_server.s3_properties))
    with closed_port() as endpoint:
        deaf = Storage({**moto_server.s3_properties, "s3.endpoint": endpoint})
        with pytest.raises(StorageError, match=r"^the policy file cannot be read: "):
            read_policy_file("s3://control/config/policy.yaml", deaf)


def test_text_of_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_bytes("rules: []  # ä".encode("latin-1"))
    with pytest.raises(PolicyError, match=r"is not UTF-8 text"):
        read_policy_file(str(tmp_path / "policy.yaml"))
    assert read_policy_file("") == ()


def test_a_folder_in_place_of_the_policy_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^the policy file cannot be read: "):
        read_policy_file(str(tmp_path))


# The user's own file.


@pytest.fixture
def own(command: Command) -> Path:
    """The user's own file, which turns maintenance off for ``ns.t``."""
    file = command.folder / "home" / ".config" / "icekeeper" / "icekeeper.yaml"
    file.parent.mkdir(parents=True, mode=0o700)
    file.write_text(RULES)
    file.chmod(0o600)
    return file


def source_of(command: Command, key: str = "min_input_files") -> str:
    source: str = command("policy", "show", "ns.t", "--json").json["policy"][key]["source"]
    return source


def test_commands_find_the_users_file_and_a_named_file_wins(
    command: Command, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.table()
    assert source_of(command) == f"policy file {own} rule 1 (*/*/t)"
    assert command("run", "--engine", "local", "--once").code == 0
    assert len(command.catalog.load_table("ns.t").inspect.files()) == 6
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", "relative")
        assert source_of(command) == f"policy file {own} rule 1 (*/*/t)"
        patch.setenv("XDG_CONFIG_HOME", str(command.folder / "other"))
        assert source_of(command) == "default"
    other = command.folder / "policy.yaml"
    other.write_text("rules:\n")
    monkeypatch.setenv("ICEKEEPER_POLICY_FILE", str(other))
    assert source_of(command) == source_of(command, "maintenance_enabled") == "default"  # nothing merges


def test_the_library_functions_and_jobs_look_for_no_file(command: Command, own: Path) -> None:
    command.table()
    assert Icekeeper("C").policy("ns.t").sources["min_input_files"] == "default"
    assert policy_address(os.environ, of_user=True) == str(own)
    assert policy_address(os.environ, of_user=False) == ""
    assert TablePolicies(os.environ)._file == ()


@pytest.mark.parametrize("what", ["file", "folder", "linked file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_file_that_others_may_change_stops_every_command(command: Command, own: Path, what: str, mode: int) -> None:
    command.table()
    changed = own.parent if what == "folder" else own
    if what == "linked file":
        changed = own.rename(command.folder / "elsewhere.yaml")
        own.symlink_to(changed)
        assert source_of(command) == f"policy file {own} rule 1 (*/*/t)"
    changed.chmod(changed.stat().st_mode | mode)
    answer = command("detect")
    assert (answer.code, answer.out) == (2, "")
    assert one_sentence(answer.err) == (
        f"policy file {own} is not read, because others may change it: {changed} must belong to this user, and nobody "
        f"else may write it (chmod go-w {changed})"
    )


def test_a_file_of_another_user_stops_every_command(
    command: Command, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: own.stat().st_uid + 1)
    assert command("detect").code == 2


def test_a_link_to_a_missing_file_is_an_error(command: Command, own: Path) -> None:
    own.unlink()
    assert command("detect").code == 0
    own.symlink_to(command.folder / "missing.yaml")
    answer = command("detect")
    assert answer.code == 1
    assert one_sentence(answer.err) == f"the policy file cannot be read: {own}: No such file or directory"


def test_a_file_of_the_current_folder_is_mentioned_and_never_used(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.table()
    monkeypatch.chdir(command.folder)
    Path("icekeeper.yaml").write_text(RULES)
    own = command.folder / "home" / ".config" / "icekeeper" / "icekeeper.yaml"
    hint = (
        f"icekeeper.yaml in the current folder is not used: settings come from {own}, or the file that "
        "ICEKEEPER_POLICY_FILE names (icekeeper docs policy)\n"
    )
    answer = command("policy", "show", "ns.t", "--json")
    assert answer.json["policy"]["min_input_files"]["source"] == "default"
    assert answer.err == hint
    assert [command(*call).err for call in (("detect",), ("list",), ("-q", "detect"))] == [hint, "", ""]
    monkeypatch.setenv("ICEKEEPER_POLICY_FILE", "icekeeper.yaml")
    assert command("detect").err == ""


# ``policy init`` and ``policy check``.


def test_init_writes_a_file_that_changes_nothing_and_never_overwrites(command: Command) -> None:
    command.table()
    own = command.folder / "home" / ".config" / "icekeeper" / "icekeeper.yaml"
    answer = command("policy", "init", "--json", catalog=None)
    assert (answer.code, answer.json) == (0, {"status": "succeeded", "file": str(own)})
    assert (own.stat().st_mode & 0o777, own.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert own.read_text() == starter_file()
    assert source_of(command) == "default"
    own.write_text(RULES)
    again = command("policy", "init", catalog=None)
    assert (again.code, own.read_text()) == (2, RULES)
    assert one_sentence(again.err) == f"{own} exists, and is not overwritten; edit it, or name another file"
    other = command.folder / "fleet.yaml"
    assert command("policy", "init", str(other), catalog=None).code == 0
    assert other.read_text() == starter_file()
    assert command("policy", "init", str(command.folder / "none" / "fleet.yaml"), catalog=None).code == 2


def test_every_line_of_the_written_file_can_be_used() -> None:
    """The defaults in it are those of the policy."""
    assert parse_policy_file(starter_file(), "F") == ()
    lines = starter_file().partition("rules:\n")[2]
    used = parse_policy_file("rules:\n" + re.sub("^# ", "", lines, flags=re.MULTILINE), "F")
    (everything, usual), (patterns, example) = used
    assert everything == {}
    defaults = {key: text_of(getattr(Policy(), key)) for key in usual.values}
    assert dict(usual.values) == defaults
    assert len(usual.values) == 5
    assert patterns == {"bucket": ("prod-*",), "namespace": ("scratch", "tmp_*"), "table": ("load_?",)}
    assert dict(example.values) == {"maintenance_enabled": "false"}


FLEET = """\
rules:
- settings:
    snapshot_retention_hours: 72
- namespace: ns
  table: t, o*
  settings:
    min_input_files: 8
    target_file_size_mb: 512
- table: gone_*
  settings:
    maintenance_enabled: false
"""


def test_check_shows_what_each_rule_sets_for_which_tables(command: Command) -> None:
    for name in ("ns.t", "ns.other", "ns.a", "ns.b"):
        command.table(name, appends=0)
    file = command.folder / "fleet.yaml"
    file.write_text(FLEET)
    answer = command("policy", "check", str(file))
    assert (answer.code, answer.err) == (0, "")
    lines = [re.sub("  +", "  ", line) for line in answer.out.splitlines()]
    assert lines == [
        f"{file}: valid; 3 rules, compared with the tables of C",
        "rule 1  every table  snapshot_retention_hours=72  4 tables: ns.a, ns.b, ns.other and 1 more",
        "rule 2  namespace ns, table t,o*  min_input_files=8, target_file_size_mb=512  2 tables: ns.other, ns.t",
        "rule 3  table gone_*  maintenance_enabled=false  matches no table",
    ]
    rules = command("policy", "check", str(file), "--json").json["rules"]
    assert rules[1] == {
        "rule": 2,
        "patterns": {"namespace": ["ns"], "table": ["t", "o*"]},
        "settings": {"min_input_files": "8", "target_file_size_mb": "512"},
        "tables": [{"catalog": "C", "table": "ns.other"}, {"catalog": "C", "table": "ns.t"}],
    }
    assert one_sentence(command("policy", "check").err).startswith("no file of settings is in force")


def test_check_finds_mistakes_and_rules_that_contradict_each_other(command: Command) -> None:
    command.table(appends=0)
    file = command.folder / "fleet.yaml"
    for text, reported in (
        (FLEET.replace("min_input_files: 8", "min_input_file: 8"), "unknown policy key 'min_input_file'"),
        (
            FLEET.replace("min_input_files: 8", "orphan_older_than_hours: 1"),
            "C ns.t: policy key orphan_older_than_hours",
        ),
    ):
        file.write_text(text)
        answer = command("policy", "check", str(file))
        assert (answer.code, answer.out) == (2, "")
        assert one_sentence(answer.err).startswith(reported)
