"""An unexpected error in one line, with the place where it happened."""

import traceback
from pathlib import Path

_SAID_CHARS = 400


def in_one_line(error: BaseException) -> str:
    """Type, place and message."""
    code, line = "?", 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        code, line = frame.f_code.co_filename, number
    place = f"{Path(code).parent.name}/{Path(code).name}, line {line}"
    said = " ".join(str(error).split())[:_SAID_CHARS]
    return f"{type(error).__name__} in {place}: {said}"
