"""Promises to clients, kept where a restart cannot take them. Nothing here runs in the event loop
but the handing over.
"""
