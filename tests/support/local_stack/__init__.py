"""A local AWS for the pipeline: moto as control plane, functions in this process, Glue jobs as processes of their own.

``template`` reads template.yaml, ``stack`` creates what it describes and starts executions, ``executions`` reads their
histories, ``functions`` and ``jobs`` run what AWS would run.  ``patches`` lists everything that moto does differently
here, with the reason; ``tests/workflow/test_local_stack.py`` holds a canary for each.
"""
