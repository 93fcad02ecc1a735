"""Manifests in portions of about one size, each the work of one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from icekeeper.model import ManifestFile

__all__ = ["portions"]


def portions(manifests: Sequence[ManifestFile], portion_bytes: int) -> Iterator[tuple[ManifestFile, ...]]:
    """The manifests in their order; each portion but the last has at least so many bytes, by one manifest too many."""
    portion: list[ManifestFile] = []
    size = 0
    for manifest in manifests:
        portion.append(manifest)
        size += manifest.manifest_length
        if size >= portion_bytes:
            yield tuple(portion)
            portion, size = [], 0
    if portion:
        yield tuple(portion)
