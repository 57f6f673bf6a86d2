"""The example agent: a shop assistant with three tools, played against a real server."""
