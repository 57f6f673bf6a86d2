"""The former place of the demo, for what still imports it from here."""
