"""Agents of other frameworks, unmodified, on one ``keepwarm serve``: each file one of them."""
