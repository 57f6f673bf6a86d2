"""The judge of chat formats: which of our renderers writes what a folder's own template writes."""
