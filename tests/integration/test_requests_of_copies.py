"""Every request that a copy of row groups sends to a store, from the first look at a footer to the proof (rule 156)."""

from __future__ import annotations

import uuid
from collections import Counter

from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.model import DataFile
from icekeeper.storage.storage import Storage
from support.copied import judged, large_file, merged_by_the_store, stored_entry
from support.proxies import CountingProxy, counting_proxy


def kinds(store: CountingProxy, stage: str) -> Counter[str]:
    """Requests by kind and, of inputs and the output, by file."""
    return Counter(
        f"{one.kind} {one.path.partition('?')[0].rpartition('/')[2]}" for one in store.requests if one.stage == stage
    )


def test_a_copy_sends_what_it_needs(seaweedfs: SeaweedFSServer) -> None:
    seaweedfs.create_table_bucket("copies-counted")
    properties = seaweedfs.catalog_properties("copies-counted")
    folder = f"{properties['warehouse']}ns/t{uuid.uuid4().hex}/data"
    direct = Storage(properties)
    files = [large_file(0), large_file(1_000_000, seed=1)]
    entries = [stored_entry(direct, f"{folder}/{number}", data) for number, data in enumerate(files)]
    with counting_proxy(seaweedfs.s3_endpoint) as store:
        storage = Storage({**properties, "s3.endpoint": store.address})
        store.stage = "footers"
        inputs = judged(storage, entries)
        store.stage = "by the store"
        assert isinstance(merged_by_the_store(storage, inputs, f"{folder}/stored"), DataFile)
        storage.no_range_copies.add(folder.split("/")[2])
        store.stage = "through us"
        assert isinstance(merged_by_the_store(storage, inputs, f"{folder}/streamed"), DataFile)
    assert kinds(store, "footers") == {"GET 0": 1, "GET 1": 1}
    assert {one.range for one in store.requests if one.stage == "footers"} == {"bytes=-65536"}
    # Page indexes came with the footers.  The proof: size, footer and magic of the new file, for each input some bytes
    # on both sides and one column chunk that is decoded.
    assert kinds(store, "by the store") == {
        "CREATE stored": 1,
        "PART stored": 2 + 1,
        "COMPLETE stored": 1,
        "HEAD stored": 1,
        "GET stored": 1 + 1 + 2 * 2,
        "GET 0": 1,
        "GET 1": 1,
    }
    # Both inputs and, for the proof, size, footer, all 14 MB in two ranges, and a column chunk of each input.
    assert kinds(store, "through us") == {
        "GET 0": 1,
        "GET 1": 1,
        "PUT streamed": 1,
        "HEAD streamed": 1,
        "GET streamed": 1 + 2 + 2,
    }
