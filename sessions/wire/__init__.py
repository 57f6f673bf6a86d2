"""Sockets, and the hub between them and the engine."""
