"""Whether a deployed stack works: a scratch table, a pass as deployed, a pass in Glue jobs, then all of it removed.

``make smoke STACK=…`` runs it against AWS (docs/deployment.md, "Is it well?"); a test runs it against the local stack.
"""
