"""Hostile bytes for every parser, and the child process in which they are tried."""
