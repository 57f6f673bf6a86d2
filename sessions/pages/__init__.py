"""What people and monitoring see."""
