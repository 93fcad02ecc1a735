"""A path is looked at once for all questions about it, and answers as its text does."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.operations.expiry.unreferenced import Candidates
from icekeeper.storage.paths import PathSet, authority, compared, is_under, may_be_under, normalise

PATHS = st.one_of(
    st.text(st.sampled_from("/.:%2Ffiles3a\\x"), max_size=20),
    st.lists(st.sampled_from(["a", "b", "..", ".", "%41", ".h", ""]), max_size=4).map("/".join),
    st.lists(st.sampled_from(["a", "b", "..", ".", "%41", ".h", ""]), max_size=4).map(lambda p: "/" + "/".join(p)),
    st.lists(st.sampled_from(["a", "b", "..", "%41"]), max_size=4).map(lambda parts: "s3://b/" + "/".join(parts)),
)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the file system was asked whether a path is a link."""
    counted, lstat = Counter[str](), os.lstat

    def counting(path: Any, **more: Any) -> os.stat_result:
        counted[str(path)] += 1
        return lstat(path, **more)

    monkeypatch.setattr(os, "lstat", counting)
    return counted


@given(PATHS, PATHS)
def test_a_compared_path_answers_as_its_text_does(path: str, location: str) -> None:
    now, place = compared(path), compared(location)
    assert now == path
    assert normalise(now) == normalise(path)
    assert authority(now) == authority(path)
    assert is_under(now, place) == is_under(path, location)
    assert may_be_under(now, place) == may_be_under(path, location)
    assert PathSet([location]).may_contain(now) == PathSet([location]).may_contain(path)
    again = compared(path, is_plain=now.is_plain)
    assert (again.key, again.normal, again.is_plain) == (now.key, now.normal, now.is_plain)


def test_questions_about_a_compared_path_look_at_nothing(tmp_path: Path, looks: Counter[str]) -> None:
    now, place = compared(str(tmp_path / "t/f")), compared(str(tmp_path / "t"))
    looks.clear()
    assert is_under(now, place)
    assert may_be_under(now, place)
    assert normalise(now) == str(tmp_path / "t/f")
    assert not PathSet([str(tmp_path)]).may_contain(compared("s3://b/x"))
    assert looks[str(tmp_path / "t/f")] == 0


def test_each_comparison_sees_the_links_of_its_moment(tmp_path: Path) -> None:
    """(rule 87)"""
    (tmp_path / "target").write_text("")
    path = str(tmp_path / "f")
    before = compared(path)
    (tmp_path / "f").symlink_to("target")
    after = compared(path)
    assert (before.normal, before.is_plain) == (path, True)
    assert (after.normal, after.is_plain) == (str(tmp_path / "target"), False)


def test_an_expiry_plans_with_one_look_at_each_file(tmp_path: Path, looks: Counter[str]) -> None:
    (tmp_path / "data").mkdir()
    paths = [str(tmp_path / "data" / f"{number}.parquet") for number in range(20)]
    (tmp_path / "data" / "7.parquet").symlink_to("nothing")
    candidates = Candidates([str(tmp_path)], lambda path: is_under(path, "/elsewhere"))
    for path in paths:
        candidates.add(path, 1, holds_rows=True)
    candidates.leave_out(lambda path: normalise(path) == paths[3])
    assert set(candidates.paths()) == {*paths} - {paths[3]}
    assert {looks[path] for path in paths if path != paths[7]} == {1}
    asked = [*candidates.of_each_folder()]
    assert paths[7] in asked  # a link may lead anywhere
    assert len(asked) <= 2
