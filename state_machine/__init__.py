"""Writes the state machine's definition: ``make definition`` puts it into functions/maintain_tables.asl.yaml.

``fleet_run`` has the states of a run, ``table_pass`` those of one table's pass; the states of operations come from
``icekeeper.operation_facts``.  ``tasks`` has what all tasks share, with each retry block once.
"""
