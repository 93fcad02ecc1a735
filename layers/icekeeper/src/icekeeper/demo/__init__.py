"""The demonstration: a real table bucket on this machine, and a reader that is not ours."""
