"""Where the user's home folder is, whoever the user.

Always true: asking does not fail; a user of whom the system knows nothing has a home, too.
"""

import os
from pathlib import Path


def home_folder() -> Path:
    """The user's home folder; the root of the file system where the user has none, as containers
    have it for users that they do not know."""
    found = os.path.expanduser("~")
    return Path("/" if found == "~" else found)
