"""The dashboard in a terminal."""
