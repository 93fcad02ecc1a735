"""``icekeeper verify``: check what readers of a table rely on, without changing anything."""
