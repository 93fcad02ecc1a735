"""A matrix of writers, operations and independent readers.

``tables`` makes a table by each writer and maintains it; ``questions`` has the queries and computes their answers from
the written rows; ``readers`` runs the queries.  Readers in Rust and ClickHouse run ``served`` in a separate
environment (``environment``), which the Makefile installs from ``packages.txt``.
"""
