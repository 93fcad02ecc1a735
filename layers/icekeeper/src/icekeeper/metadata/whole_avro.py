"""Whether bytes look like a whole Avro container file, told by its ends alone.

Source: Apache Avro specification, "Object Container Files": the header ends with a random marker of 16 bytes, and so
does each block.
"""

from __future__ import annotations

__all__ = ["is_whole_avro"]

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16


def is_whole_avro(data: bytes) -> bool:
    """Whether the file begins and ends as it should; false for one without any blocks, of which this cannot tell.

    A file that was cut off between two blocks looks whole.
    """
    return data.startswith(_MAGIC) and data.find(data[-_MARKER_BYTES:]) < len(data) - _MARKER_BYTES
