"""The part of the server's environment that child processes see: all but its secrets.

A child needs no key of the server's clients; what it does not have, a crash dump of it or a
program that it starts cannot show.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

KEY_VARIABLE: Final = "KEEPWARM_API_KEY"
"""Holds the API key of a server with one tenant."""


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for a child that is to import what this process can."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    passed = {name: value for name, value in environment.items() if name != KEY_VARIABLE}
    return passed | {"PYTHONPATH": path}
