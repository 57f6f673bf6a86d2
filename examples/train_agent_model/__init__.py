"""Training of the tiny tool-calling model that ships as ``runtime/assets/default_model``."""
