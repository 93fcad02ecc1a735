"""The whole stack on this machine: moto as AWS, functions in this process, Glue jobs as separate processes.

``make pipeline`` runs it over four tables (``pipeline_run``); tests use their own tables, or stand-ins for functions
and jobs.  ``template`` reads template.yaml, ``stack`` creates its resources and starts executions, ``executions`` reads
their histories, ``functions`` and ``jobs`` run what AWS would run, ``metrics`` reads the metrics that CloudWatch would
receive.

``moto_server`` imitates AWS, also for tests that need no stack.  Differences between moto and AWS are corrected here,
each with its reason and a test that shows when the correction is no longer needed: ``moto_dynamodb``, ``moto_glue`` and
``moto_s3tables`` by service; ``patches``, with ``distributed_map`` and ``pace``, for executions and the calls that they
make.

``gate`` checks requests in front of moto: ``rights`` decides what the policies of the template allow each role,
``limits`` what AWS refuses and moto does not; ``wire`` is a request as both read it.

This package is not deployed: moto is a dependency for development only.
"""
