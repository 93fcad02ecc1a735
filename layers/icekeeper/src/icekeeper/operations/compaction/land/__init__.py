"""Commits results: how many file groups at once, which still hold on the newest head, and deletes that came late."""
