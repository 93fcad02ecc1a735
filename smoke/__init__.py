"""Whether a deployed stack works: a scratch table, a pass in functions, a pass in a Glue job, then all of it removed.

``make smoke STACK=…`` runs it against AWS (docs/deployment.md, "Is it well?"); a test runs it against the local stack.
"""
