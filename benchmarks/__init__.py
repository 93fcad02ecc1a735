"""The benchmark suite: Icekeeper and its peers over the same tables, side by side in one run (``make bench``)."""
