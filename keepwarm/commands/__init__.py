"""The commands that users type, a module each, loaded when it is asked for."""
