"""Control characters are escaped in all output for terminals and logs
(rule: escape-at-the-edge)."""

from __future__ import annotations

import io
import json
import logging
import sys
import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import StorageError
from icekeeper.pipeline.glue_job import start_logging
from icekeeper.report.activity import JsonLines
from icekeeper.text import MaskingFormatter, escaped, escaped_document, escaped_lines, printable_json
from local_stack.functions import LambdaContext
from support.lambda_functions import give_up_package_logger

FORGED = "error: all tables lost"
ESC, C1, BIDI, MARK, ZERO, LINE, HALF = "\x1b[2J", "\x9b", "\u202e", "\u200f", "\u200b", "\u2028", "\ud800"
HOSTILE = f"a{ESC}{C1}{BIDI}{MARK}{ZERO}{LINE}{HALF}\n{FORGED}"
SPELLED = r"a\x1b[2J\x9b\u202e\u200f\u200b\u2028\ud800\n" + FORGED
# pytest reports logged text, and its workers cannot send a lone surrogate.
LOGGED, LOGGED_SPELLED = HOSTILE.replace(HALF, ""), SPELLED.replace(r"\ud800", "")
ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_escaped_text_is_one_printable_line_and_printable_text_is_unchanged(text: str) -> None:
    result = escaped(text)
    assert result.isprintable()
    assert escaped(result) == result
    assert result == "".join(item if item.isprintable() else escaped(item) for item in text)


def test_every_control_format_and_line_character_is_escaped() -> None:
    unsafe = {chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in "Cc Cf Cs Zl Zp"}
    assert {item for item in unsafe if not escaped(item).isascii() or escaped(item) == item} == set()
    # Characters that attacks use.
    used = "\x1b\x9b\x85\x7f\r\n\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\udc80\U000e0041"
    assert set(used) <= unsafe
    assert escaped(HOSTILE) == SPELLED
    assert escaped("größe – 表 ∩ 😀 \\x1b") == "größe – 表 ∩ 😀 \\x1b"


@given(st.recursive(ANY_TEXT, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner), max_leaves=5))
def test_printable_json_has_the_same_value(document: object) -> None:
    for indent in (None, 2):
        text = printable_json(json.dumps(document, ensure_ascii=False, indent=indent))
        assert all(line.isprintable() for line in text.split("\n"))
        assert json.loads(text) == document


def test_lines_of_foreign_text_are_indented() -> None:
    assert escaped_lines(f"Traceback\nValueError: {HOSTILE}").split("\n") == [
        "Traceback",
        f"    ValueError: {escaped(HOSTILE.split(chr(10))[0])}",
        f"    {FORGED}",
    ]
    assert escaped_document({HOSTILE: [HOSTILE, 1, None], "b": {"c": True}}) == {
        SPELLED: [SPELLED, 1, None],
        "b": {"c": True},
    }


def broken_record() -> logging.LogRecord:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        return logging.LogRecord("n", logging.ERROR, "f", 1, "read %s", (HOSTILE,), sys.exc_info(), sinfo=HOSTILE)


def test_plain_log_lines_are_escaped() -> None:
    record = broken_record()
    logging.Formatter().format(record)  # another handler formats first and stores its text in the record
    first, *rest = MaskingFormatter().format(record).split("\n")
    assert first == f"ERROR:n:read {SPELLED}"
    assert rest[0] == "Traceback (most recent call last):"
    assert [line for line in rest if not line.isprintable() or line.startswith(FORGED)] == []
    assert record.getMessage() == f"read {HOSTILE}"


def test_log_lines_of_a_job_are_escaped() -> None:
    lines = JsonLines()
    lines.about(table=HOSTILE)
    line = lines.format(broken_record())
    assert line.isprintable()
    document = json.loads(line)
    assert (document["message"], document["table"]) == (f"read {SPELLED}", SPELLED)
    assert all(item.isprintable() and not item.startswith(FORGED) for item in document["exception"].split("\n"))


def test_an_uncaught_error_is_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    start_logging()
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    printed = capsys.readouterr().err.split("\n")
    assert printed[0] == "Traceback (most recent call last):"
    assert [line for line in printed if not line.isprintable() or line.startswith(FORGED)] == []


class LikeLambda(logging.StreamHandler[io.StringIO]):
    """Like the handler that Lambda's runtime adds to the root logger."""

    __module__ = "awslambdaric.bootstrap"


def test_logs_errors_and_metrics_of_a_function_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end = give_up_package_logger(monkeypatch)
    handler = LikeLambda(io.StringIO())
    handler.setFormatter(logging.Formatter("[%(levelname)s]\t%(message)s\n"))
    logging.getLogger().addHandler(handler)
    try:
        import cloudwatch
        import observability

        def broken(error: Exception) -> str:
            def step(*_: object) -> dict[str, object]:
                observability.logger.append_keys(table=LOGGED)
                raise error

            context: Any = LambdaContext("f", 512, 0.0)
            with pytest.raises(Exception, match="all tables lost") as raised:
                observability.function({"s": step})({"step": "s", "run_id": "r"}, context)
            return f"{raised.type.__name__}: {raised.value}"

        assert broken(StorageError(LOGGED)) == f"StorageError: {LOGGED_SPELLED}"
        assert broken(ValueError(LOGGED)) == f"RuntimeError: ValueError: {LOGGED_SPELLED}"
        lines = capsys.readouterr().out.splitlines()
        assert [json.loads(line)["table"] for line in lines] == [LOGGED_SPELLED, LOGGED_SPELLED]
        assert [line for line in lines if not line.isprintable()] == []

        monkeypatch.setenv("METRICS", "passes")
        item: Any = SimpleNamespace(catalog="lake", table=f"tä{LOGGED}{'x' * 2000}")
        outcome = SimpleNamespace(operations=(), metrics={"compact.files_merged": 1})
        table: Any = SimpleNamespace(item=item, status="succeeded", outcome=outcome, failures={})
        report: Any = SimpleNamespace(tables=[table], has_ended=False)
        cloudwatch.emit_run(report)
        metric, _ = map(json.loads, capsys.readouterr().out.splitlines())
        assert metric["table"].startswith(rf"t\xe4{LOGGED_SPELLED}")
        assert (metric["table"].isascii(), len(metric["table"])) == (True, 1024)

        logging.getLogger("library").warning("read %s", LOGGED)
        assert handler.stream.getvalue() == f"[WARNING]\tread {LOGGED_SPELLED}\n\n"
    finally:
        logging.getLogger().removeHandler(handler)
        end()
