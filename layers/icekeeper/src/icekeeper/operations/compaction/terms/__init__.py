"""What planning and work both speak of: the recipe, the task of a file group, write properties, output partitions."""
