"""What a person and a program read afterwards."""
