"""How many threads list and delete is a setting, and what is set is what runs."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator

import pytest

from icekeeper.errors import PolicyError
from icekeeper.policy import Layer, resolve
from icekeeper.storage.listing import in_parallel
from icekeeper.storage.storage import Storage


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_sources_are_read_at_once_than_threads_are_set(threads: int) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def source() -> Iterator[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        yield 1
        with lock:
            running -= 1

    assert sum(in_parallel([source] * 12, threads)) == 12
    assert most == threads


def test_a_store_keeps_its_threads_on_its_way_to_a_worker() -> None:
    assert pickle.loads(pickle.dumps(Storage({}, 3)))._listing_threads == 3


@pytest.mark.parametrize("value", ["0", "65"])
@pytest.mark.parametrize("key", ["listing_threads", "delete_threads"])
def test_threads_have_bounds(key: str, value: str) -> None:
    with pytest.raises(PolicyError, match=key):
        resolve([Layer("--set", {key: value})])
