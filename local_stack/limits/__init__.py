"""What AWS refuses and moto lets pass, each with its documentation beside it; and what AWS does at times.

``table_buckets``, ``object_headers``, ``dynamodb`` and ``state_machines`` judge requests, whoever sends them;
``faults`` throttles and loses answers where a test asks for it.  ``local_stack/gate.py`` asks them before moto.
"""
