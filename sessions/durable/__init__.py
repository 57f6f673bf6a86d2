"""What outlives a turn: sessions, responses, transcripts, accounts."""
