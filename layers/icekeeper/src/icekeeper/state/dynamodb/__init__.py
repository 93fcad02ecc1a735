"""State in one DynamoDB table, for deployments in AWS; ``state/item_layout.py`` has the keys of its items, which SQLite
shares."""
