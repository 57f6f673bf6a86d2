"""Speculation: tokens proposed from the grammar and from earlier text."""
