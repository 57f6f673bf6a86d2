"""What agents say to the runtime and back: wire types, chat formats, the Python SDK."""
