"""HTTP APIs other than Responses, translated."""
