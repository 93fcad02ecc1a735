"""State in one SQLite file, for a laptop; ``state/item_layout.py`` has the keys of its items, which DynamoDB shares."""
