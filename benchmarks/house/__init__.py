"""The figures of the code itself: its size and shape, what a command calls, what an import costs (``make figures``)."""
