"""Helpers of the tests: reference engine, mock model, fake clock."""
