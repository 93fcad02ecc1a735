"""What a worker does: read, sort, write or copy the rows of a file group, and prove the result."""
