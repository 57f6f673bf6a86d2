"""Which release of Keepwarm is installed, as the installed distribution says.

A tree that was never installed has no release and says so.
"""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("keepwarm")
except importlib.metadata.PackageNotFoundError:
    __version__ = "0+unknown"
