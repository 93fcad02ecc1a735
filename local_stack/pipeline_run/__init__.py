"""``make pipeline``: runs the stack over four messy tables; the compaction of one table fails on purpose.

``lake`` makes the tables, ``run`` runs the steps, ``progress`` and ``printing`` print for people, ``expected`` checks
the results.
"""
