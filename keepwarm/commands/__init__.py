"""What users type: one module for each command."""
