"""Turns without a socket: from a client's frame to events."""
