"""Catalogs (REST, SQL, S3 Tables, Glue): list tables, load a table's metadata document, and swap it."""
