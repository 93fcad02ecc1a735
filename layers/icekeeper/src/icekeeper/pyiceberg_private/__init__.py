"""The one room that touches what PyIceberg does not promise to keep (platform: pyiceberg-private-names).

PyIceberg's public API rebuilds table metadata from models that drop unknown fields and cannot write format version 3,
so requests go through its authenticated session as raw JSON, and SQL swaps through its engine.  The version is pinned
exactly; :mod:`icekeeper.pyiceberg_private.canary` tells a contract test when a name has moved.  One module per library
that comes along, so that nobody imports SQLAlchemy who has no SQL catalog.
"""
