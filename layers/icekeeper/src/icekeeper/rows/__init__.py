"""Reads data and delete files of any format as rows of the table's current schema; applies and writes deletes."""
