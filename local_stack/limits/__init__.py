"""Requests that AWS refuses and moto accepts, each with its source in the documentation; and occasional faults of AWS.

``table_buckets``, ``object_headers``, ``dynamodb`` and ``state_machines`` check requests of every sender; ``faults``
throttles and loses answers if a test requests it.  ``local_stack/gate.py`` calls them before moto.
"""
