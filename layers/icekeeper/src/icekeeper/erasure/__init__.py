"""``icekeeper erased``: whether any object of a table still stores rows of a filter, without changing anything."""
