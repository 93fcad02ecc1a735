"""The only room that uses private names of PyIceberg.

PyIceberg's public API rebuilds table metadata from models that drop unknown fields and cannot write format version 3.
So requests are sent as raw JSON through its authenticated session, and SQL swaps use its engine.  The version is pinned
exactly, and ``tests/contract/test_canaries.py`` finds moved names.  Each library has its own module, so that SQLAlchemy
is imported only for a SQL catalog.
"""
