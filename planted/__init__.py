"""Faults that are planted in the code to see that the tests find them: make planted."""
