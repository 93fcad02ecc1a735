"""The cycle as a process, without AWS: detect, maintain what needs it, report, every interval (``icekeeper run``)."""
