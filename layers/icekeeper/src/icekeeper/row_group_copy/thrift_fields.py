"""Says which field of a Thrift structure has which id and type, as Thrift's compiled reader and writer ask for it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from thrift.Thrift import TType

__all__ = ["BOOL", "BYTES", "EMPTY", "I8", "I16", "I32", "I64", "Empty", "Kind", "describe", "list_of", "struct"]

Kind: TypeAlias = tuple[int, Any]
BOOL: Kind = (TType.BOOL, None)
I8: Kind = (TType.BYTE, None)
I16: Kind = (TType.I16, None)
I32: Kind = (TType.I32, None)
I64: Kind = (TType.I64, None)
# Names are compared as bytes too: what is no UTF-8 then needs no rule of its own.
BYTES: Kind = (TType.STRING, "BINARY")


def struct(kind: type[Any]) -> Kind:
    """The type of a field that holds such a structure."""
    return TType.STRUCT, [kind, kind.thrift_spec]


def list_of(kind: Kind) -> Kind:
    """The type of a field that holds a list."""
    return TType.LIST, (*kind, False)


def describe(kind: type[Any], *types: Kind | None) -> None:
    """Give a class the types of its fields; the first one has id 1, ``None`` leaves an id out."""
    names = iter([one.name for one in fields(kind)])
    numbered = enumerate(types, 1)
    kind.thrift_spec = (None, *(t and (number, t[0], next(names), t[1], None) for number, t in numbered))


@dataclass(slots=True)
class Empty:
    """A structure whose presence says all."""

    thrift_spec: ClassVar[Any] = (None,)


EMPTY: Kind = struct(Empty)
