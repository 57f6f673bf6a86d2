"""Which sequences compute how many tokens in the next step, and with which blocks. No torch."""
