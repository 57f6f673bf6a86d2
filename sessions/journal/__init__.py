"""What a client was promised, kept where a restart cannot take it."""
