"""Checks that a deployed stack works, with a scratch table: a pass as deployed, and a pass in Glue jobs.

``make smoke STACK=…`` runs it against AWS (docs/deployment.md, "Is it well?"); a test runs it against the local stack.
"""
