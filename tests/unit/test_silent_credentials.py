"""A source of credentials that never answers ends in an error, and not in a process that hangs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from botocore.exceptions import CredentialRetrievalError

from icekeeper.aws import session as answer_in_time
from icekeeper.aws.session import aws_session


def test_a_credential_process_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text("[profile hangs]\ncredential_process = sleep 2\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(answer_in_time, "ANSWERS_IN_S", 0.05)
    session = aws_session({"s3.profile-name": "hangs"})
    for ask in (session.keys, lambda: session.client("s3"), session.keys):
        with pytest.raises(CredentialRetrievalError, match=r"it has not answered for 0\.05 s"):
            ask()
    asked = [thread for thread in threading.enumerate() if thread.name == "credentials"]
    assert len(asked) == 1, "it is not asked again while it is silent"


def test_what_a_source_says_is_told_as_it_says_it() -> None:
    def ask() -> None:
        raise TimeoutError("of the source")

    with pytest.raises(TimeoutError, match="of the source"):
        answer_in_time.Patience().ask(ask, "a source")
