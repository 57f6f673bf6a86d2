"""One module per question; each is run as ``python -m benchmarks.NAME [--json]``."""
