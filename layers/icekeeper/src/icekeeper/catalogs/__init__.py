"""Catalogs (REST, SQL, S3 Tables, Glue): load a table's metadata document, swap it, and list what there is."""
