"""Writes the state machine's definition: ``make definition`` puts it into functions/maintain_tables.asl.yaml.

``line`` has the run from top to bottom, ``maps`` the work table by table, ``tasks`` what all tasks share, with each
retry block once.  The names, work and needs of the steps are in ``icekeeper.operation_facts``.
"""
