"""What planning and work share: the recipe, the task of a file group, write properties, output partitions."""
