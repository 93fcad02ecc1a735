"""What Icekeeper remembers between passes."""
