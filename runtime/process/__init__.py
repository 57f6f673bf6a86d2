"""The engine in a child process: starting it, talking to it, telling whether it hangs."""
