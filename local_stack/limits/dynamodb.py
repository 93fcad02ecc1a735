"""Sizes and words that DynamoDB refuses.

Source: Amazon DynamoDB developer guide, "Quotas" (400 KB for an item, 100 actions or 4 MB for a transaction, 25 writes,
100 reads), "DynamoDB item sizes and formats", "Reserved words in DynamoDB".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords

from local_stack.wire import HttpAnswer, WireRequest, json_error

LARGEST_ITEM = 400 * 1024
_LARGEST_TRANSACTION = 4 * 1024 * 1024
_MOST = {"TransactWriteItems": 100, "TransactGetItems": 100, "BatchWriteItem": 25, "BatchGetItem": 100}
_EXPRESSION = re.compile(r"(?:KeyCondition|Filter|Condition|Update|Projection)Expression")
# Words that stand for themselves, and function names, which a bracket follows.
_SYNTAX = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "SET", "REMOVE", "ADD", "DELETE"})
_NAME = re.compile(r"(?<![#:\w])([A-Za-z_]\w*)(?!\w|\s*\()")


def refused_by_dynamodb(request: WireRequest) -> HttpAnswer | None:
    """AWS's answer to a request that is too large, or names an attribute by a reserved word."""
    if request.service != "dynamodb":
        return None
    document = request.document
    if len(list(_parts(request.target, document))) > _MOST.get(request.target, 1 << 30):
        return _invalid(f"Member must have length less than or equal to {_MOST[request.target]}")
    sizes = [item_size(item) for item in _written(document)]
    if any(size > LARGEST_ITEM for size in sizes):
        return _invalid("Item size has exceeded the maximum allowed size")
    if request.target == "TransactWriteItems" and sum(sizes) > _LARGEST_TRANSACTION:
        return _invalid("Collection size of items in a transaction exceeds the limit")
    if words := sorted(reserved_words(document)):
        return _invalid(f"Attribute name is a reserved keyword; reserved keyword: {words[0]}")
    return None


def item_size(item: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes of an item as DynamoDB counts them: names and values."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


def reserved_words(document: Any) -> set[str]:
    """Reserved words that stand for attributes in any expression of a request."""
    found: set[str] = set()
    for expression in _expressions(document):
        names = (name.upper() for name in _NAME.findall(expression))
        found |= {name for name in names if name not in _SYNTAX and name in _reserved()}
    return found


def _reserved() -> frozenset[str]:
    return frozenset(ReservedKeywords.get_reserved_keywords())


def _value_size(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return (len(content.lstrip("-0").replace(".", "")) + 1) // 2 + 1
        case "B":
            return len(base64.b64decode(content))
        case "BOOL" | "NULL":
            return 1
        case "M":
            return 3 + item_size(content) + len(content)
        case "L":
            return 3 + sum(_value_size(one) + 1 for one in content)
    return sum(_value_size({kind[0]: one}) for one in content)  # sets: SS, NS, BS


def _parts(operation: str, document: Mapping[str, Any]) -> Iterator[Any]:
    if operation in ("TransactWriteItems", "TransactGetItems"):
        yield from document["TransactItems"]
    elif operation in ("BatchWriteItem", "BatchGetItem"):
        for asked in document["RequestItems"].values():
            yield from asked if isinstance(asked, list) else asked["Keys"]


def _written(value: Any) -> Iterator[Mapping[str, Any]]:
    """Items that a request puts, at whatever depth: of PutItem, BatchWriteItem and transactions."""
    if isinstance(value, list):
        for one in value:
            yield from _written(one)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key == "Item":
                yield inner
            elif key in ("RequestItems", "TransactItems", "Put", "PutRequest") or isinstance(inner, list):
                yield from _written(inner)


def _expressions(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _expressions(one)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and _EXPRESSION.fullmatch(key):
                yield inner
            elif key not in ("Item", "Key", "ExpressionAttributeValues"):
                yield from _expressions(inner)


def _invalid(message: str) -> HttpAnswer:
    return json_error("400 Bad Request", "ValidationException", f"One or more parameter values were invalid: {message}")
