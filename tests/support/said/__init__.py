"""The dialogues that are recorded: what clients say, in the order in which they say it."""
