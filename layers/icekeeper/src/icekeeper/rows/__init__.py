"""Data and delete files of any format as rows of the table's current schema, deletes applied."""
