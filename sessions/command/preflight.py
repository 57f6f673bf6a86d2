"""Faults of a model that can be found before torch is loaded: a folder that is missing or unfit, a
context that it does not have.

Reads the small files of the folder alone; weights are looked at where they are loaded.
"""

from runtime.model.config import LoadError
from runtime.model.sources import (
    WEIGHT_FILES,
    ModelSource,
    check_context,
    find_source,
    folder_of,
)


def known_source(model: str) -> ModelSource | None:
    """The source that ``model`` stands for; None where a file of it may have to be waited for,
    which is the loader's to do.

    Raises:
        LoadError: it cannot be served, or not be looked at.
    """
    folder = folder_of(model)
    try:
        config = None if folder is None else folder / "config.json"
        if config is not None and config.exists() and not config.is_file():
            return None
        return find_source(model)
    except OSError as error:
        raise LoadError(f"{error.filename or folder}: {error.strerror}") from error


def fault_of_model(model: str) -> str | None:
    """Why ``keepwarm serve --model MODEL`` cannot work, as far as is seen at once; None if
    nothing is."""
    try:
        source = known_source(model)
    except LoadError as error:
        return str(error)
    folder = None if source is None or source.gguf is not None else source.folder
    if folder is not None and not any((folder / name).exists() for name in WEIGHT_FILES):
        return f"{folder}: no weights; there has to be {' or '.join(WEIGHT_FILES)}"
    return None


def fault_of_context(model: str, asked: int | None) -> str | None:
    """Why ``model``, which is there, cannot be served with transcripts of ``asked`` tokens; None
    if it can."""
    source = known_source(model)
    try:
        if source is not None:
            check_context(model, source.config, asked)
    except LoadError as error:
        return str(error)
    return None
