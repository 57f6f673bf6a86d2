"""What agents say to the runtime and back: wire types, chat formats, the Python SDK. This is what
the base install is; it needs pydantic, orjson, and websockets for the client.
"""
