"""The process and its machine: memory, cores, clocks, time limits, and counts of what is used."""
