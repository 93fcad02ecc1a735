"""JSON documents with something wrong somewhere: a value of another kind, a part that is missing, a name misspelt."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

_NUMBERS = (0, 1, -1, 2**31, 2**63 - 1, 2**63, 10**30, 0.5)
_PARTS: tuple[Any, ...] = ([], [1], [None], ["x"], [[]], [{}], {}, {"x": 1}, {"type": "x"})
_OTHER_VALUES = st.sampled_from([None, True, False, *_NUMBERS, "", "x", "1", "int", *_PARTS])


@st.composite
def damaged(draw: st.DrawFn, document: Any, most: int = 2) -> Any:
    """The document with one place changed, or with up to ``most``."""
    found = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(found))
        if not places:
            return found
        parent, key = draw(st.sampled_from(places))
        way = draw(st.sampled_from(["other", "other", "elsewhere", "gone", "twice"]))
        if way == "gone":
            del parent[key]
        elif way == "twice" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif way == "elsewhere":
            other, there = draw(st.sampled_from(places))
            parent[key] = copy.deepcopy(other[there])
        else:
            parent[key] = json.loads(json.dumps(draw(_OTHER_VALUES)))
    return found


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    for key in keys:
        yield node, key
        yield from _places(node[key])
