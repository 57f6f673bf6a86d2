"""The judge of chat formats: which of our renderers writes what a folder's own template writes. No
torch; Jinja in the child process alone.
"""
