"""Walks over the pages of a column chunk as its bytes pass: they fill it and hold the values it claims (rule 129).

Where a page has a checksum, it is that of the bytes behind its header as they are compressed, in pages of every kind
and version (apache/parquet-format, "Checksumming") (rule 247).
"""

from __future__ import annotations

import zlib
from contextlib import suppress

from icekeeper.row_group_copy.chunk_checks import Piece, data_pages
from icekeeper.row_group_copy.footer_structs import ColumnMetaData
from icekeeper.row_group_copy.page_structs import PageHeader
from icekeeper.row_group_copy.refusal import CannotCopy, DamagedPage
from icekeeper.row_group_copy.thrift_bytes import read_struct

__all__ = ["PageWalk"]

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_USUAL_HEADER = 512
_LONGEST_HEADER = 1024 * 1024
"""Headers may hold the least and greatest value of their page."""


class PageWalk:
    """Takes the bytes of one column chunk in order, in parts of any size; ``pages`` are the data pages so far."""

    def __init__(self, meta: ColumnMetaData, *, verify_checksums: bool = True) -> None:
        self.pages: list[Piece] = []
        self._meta = meta
        self._chunk = data_pages(meta)
        self._position = self._chunk.start
        self._body = 0
        """How many bytes are left of the page that has begun."""
        self._head = b""
        """The beginning of a header that has not ended."""
        self._values = 0
        self._verify_checksums = verify_checksums
        self._promised: int | None = None
        """The checksum of the page that has begun; ``None``: it has none that matters."""
        self._crc = 0

    def feed(self, part: memoryview) -> None:
        """The next bytes.

        Raises:
            CannotCopy: they are no pages, or not those that the footer describes.
            DamagedPage: a page has another checksum than its bytes.
        """
        while len(part):
            if self._body:
                step = min(self._body, len(part))
                self._body -= step
                if self._promised is not None:
                    self._crc = zlib.crc32(part[:step], self._crc)
                    if not self._body:
                        self._check()
                part = part[step:]
                continue
            header = self._header(part)
            if header is None:
                return
            found, taken = header
            part = part[taken - len(self._head) :]
            self._head = b""
            self._begin(found, taken)

    def end(self) -> None:
        """Check that the bytes ended with a page, and were what the footer says.

        Raises:
            CannotCopy: they were not.
        """
        name = self._name
        if self._body or self._head:
            raise CannotCopy(f"claims a column chunk of column {name} that ends within a page")
        if self._values != self._meta.num_values:
            raise CannotCopy(f"claims {self._meta.num_values} values of column {name}, its pages hold {self._values}")

    def _check(self) -> None:
        if self._crc != self._promised:
            raise DamagedPage(f"a page of column {self._name} has another checksum than its bytes")

    @property
    def _name(self) -> str:
        return b".".join(self._meta.path_in_schema).decode(errors="replace")

    def _header(self, part: memoryview) -> tuple[PageHeader, int] | None:
        """The header at this place and its size; ``None``: more bytes are needed."""
        for most in (_USUAL_HEADER, _LONGEST_HEADER):
            seen = self._head + bytes(part[: max(0, most - len(self._head))])
            # An error that is kept would keep this frame, and with it the block that ``part`` lies in.
            with suppress(CannotCopy):
                return read_struct(PageHeader, seen)
        if len(seen) >= _LONGEST_HEADER:
            raise CannotCopy(f"has no page of column {self._name} where one should begin")
        self._head = seen
        return None

    def _begin(self, header: PageHeader, size: int) -> None:
        start = self._position
        self._body = header.compressed_page_size
        self._position += size + self._body
        if self._body < 0 or self._position > self._chunk.end:
            raise CannotCopy(f"has a page of column {self._name} that does not lie in its column chunk")
        described = header.data_page_header if header.type == _DATA_PAGE else header.data_page_header_v2
        if header.type == _DICTIONARY_PAGE:
            if start != self._meta.dictionary_page_offset:
                raise CannotCopy(f"has a dictionary of column {self._name} where the footer names none")
        elif header.type not in (_DATA_PAGE, _DATA_PAGE_V2) or described is None or described.num_values < 0:
            raise CannotCopy(f"has a page of column {self._name} of a kind that is not copied")
        else:
            if not self.pages and start != self._meta.data_page_offset:
                raise CannotCopy(f"claims the first data page of column {self._name} elsewhere than it is")
            self.pages.append(Piece(start, self._position))
            self._values += described.num_values
        # Thrift has no unsigned numbers.
        is_checked = self._verify_checksums and header.crc is not None
        self._promised, self._crc = (header.crc or 0) & 0xFFFFFFFF if is_checked else None, 0
        if is_checked and not self._body:
            self._check()
