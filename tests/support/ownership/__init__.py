"""A model of who needs which file: several tables that get in each other's way, and what must stay whatever we do."""
