"""Writes the state machine's definition: ``make definition`` puts it into functions/maintain_tables.asl.yaml.

``line`` has the run from top to bottom, ``maps`` what is done table by table; what a step is called, does and needs is
in ``icekeeper.operation_facts``.  ``tasks`` has what all tasks share, with each retry block once.
"""
