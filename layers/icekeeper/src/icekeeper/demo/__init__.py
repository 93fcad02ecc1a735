"""The demonstration: a real table bucket on this machine, and an independent reader."""
