"""One module for each contestant; each runs as a process of its own, most of them in an environment of their own."""
