"""Constrained decoding: what a grammar allows next, and how it can still end. No torch."""
