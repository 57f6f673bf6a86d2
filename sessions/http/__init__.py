"""HTTP at the door: requests, answers, keys and routes. Knows no session."""
