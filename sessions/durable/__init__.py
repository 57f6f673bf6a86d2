"""State that outlives a turn: sessions, responses, transcripts, accounts."""
