"""Builds what a deployment copies to AWS (``make deploy-artifacts``): the package, a layer, the jobs' wheels.

Only the standard library is imported here: the environment that runs it holds pip, uv and hatchling.  Any system
builds for Linux, and the same sources give the same bytes.
"""
