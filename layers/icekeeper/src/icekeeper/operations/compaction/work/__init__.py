"""What a worker runs: reads, sorts, writes or copies the rows of one file group, and proves the result."""
