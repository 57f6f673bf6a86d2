"""Folders with ``tokenizer.json`` and its neighbours that were made of something else.

They lie in the user's cache folder, by a digest of what they were made of. No torch here.

Always true: a folder that is there is whole.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from runtime.machine_files import cache_folder
from runtime.model.config import LoadError


def kept_folder(
    kind: str, sources: Mapping[str, bytes], make: Callable[[], Mapping[str, bytes]]
) -> Path:
    """The folder that was made of these sources, which is made if it is not there.

    Args:
        kind: begins the folder's name.
        sources: all that the files depend on.
        make: the files by name.

    Raises:
        LoadError: it cannot be written.
    """
    state = hashlib.sha256()
    for name, content in sources.items():
        state.update(f"{name}\0{len(content)}\0".encode() + content)
    target = cache_folder(os.environ) / f"{kind}-{state.hexdigest()[:20]}"
    try:
        if not target.is_dir():
            _write(make(), target)
    except OSError as error:
        raise LoadError(f"{target}: {error.strerror or error}") from error
    return target


def _write(files: Mapping[str, bytes], target: Path) -> None:
    """Write all files of a tokenizer, or none."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        whole = Path(made) / "whole"
        whole.mkdir(mode=0o700)
        for name, content in files.items():
            (whole / name).write_bytes(content)
        try:
            whole.rename(target)
        except OSError:
            if not target.is_dir():  # else another process has made it meanwhile
                raise
