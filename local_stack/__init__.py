"""The whole stack on this machine: moto as AWS, functions in this process, Glue jobs as processes of their own.

``make pipeline`` runs it over four tables (``pipeline_run``); tests bring tables of their own, or stand-ins for
functions and jobs.  ``template`` reads template.yaml, ``stack`` creates what it describes and starts executions,
``executions`` reads their histories, ``functions`` and ``jobs`` run what AWS would run, ``metrics`` reads what
CloudWatch would be told.

``moto_server`` plays AWS, also for tests that need no stack.  What moto does not do as AWS does is mended here, each
with its reason and a test that says when it is needed no more: ``moto_dynamodb``, ``moto_glue`` and ``moto_s3tables``
by service; ``patches``, with ``distributed_map`` and ``pace``, for executions and what they call.

``gate`` stands in front of moto: ``rights`` says what the policies of the template allow each role, ``limits`` what AWS
refuses and moto does not; ``wire`` is a request as both see it.

It stands beside what is deployed and is no part of it: moto is a dependency of development.
"""
