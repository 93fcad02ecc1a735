"""What ``make pipeline`` runs: the stack over four messy tables, the compaction of one failing on purpose.

``lake`` has the tables, ``run`` the order of things, ``progress`` and ``tell`` are for people, ``expected`` judges.
"""
