"""The policy file: its locations, its absence, and its effect on commands."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from icekeeper.errors import PolicyError, StorageError
from icekeeper.pass_context.table_policy import read_policy_file
from icekeeper.policy.policy_file import matching_layers
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
