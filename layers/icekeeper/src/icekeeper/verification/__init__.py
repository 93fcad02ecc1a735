"""``icekeeper verify``: what every reader relies on, checked; nothing is changed."""
