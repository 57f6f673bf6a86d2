"""Pages for people and for monitoring."""
