"""A digest of a model's files, by which ranks know that they have read the same ones.

Names, sizes and heads: a folder that is exchanged for another while ranks read it differs there.
"""

from pathlib import Path

import xxhash

from runtime.model.sources import folder_of

_HEAD_BYTES = 1 << 20
_READ = ("config.json", "*.index.json", "*.safetensors", "*.gguf")


def files_digest(model: str) -> str:
    """Of the model of this name; "": it has no files.

    Raises:
        LoadError: see ``folder_of``.
        OSError: a file cannot be read.
    """
    folder = folder_of(model)
    if folder is None:
        return ""
    digest = xxhash.xxh3_128()
    found = {path for pattern in _READ for path in folder.glob(pattern)}
    for path in sorted(found if folder.is_dir() else {folder}):
        digest.update(_told(path))
    return digest.hexdigest()


def _told(path: Path) -> bytes:
    with path.open("rb") as file:
        return f"{path.name} {path.stat().st_size} ".encode() + file.read(_HEAD_BYTES)
