"""A matrix of writers, operations and readers that share no code with us.

``tables`` makes a table by each writer and maintains it; ``questions`` says what is asked of every table, and what
follows from the rows that were written; ``readers`` asks.  Readers in Rust and ClickHouse run ``served`` in an
environment of their own (``environment``), which the Makefile makes of ``packages.txt``.
"""
