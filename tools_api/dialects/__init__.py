"""HTTP APIs other than Responses, translated to it."""
