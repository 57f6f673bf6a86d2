"""The key that signs compaction items: an option's file, else one beside the journal's.

Always true: a key that is made is readable by its user alone; without a file the key, and with it
every item, ends with the process, which is said.
"""

import contextlib
import logging
import os
import secrets
from pathlib import Path

from runtime.folder_files import UnfitFile, read_named
from sessions.command.journal_options import JournalOptions, journal_file
from sessions.command.settings import OptionError
from sessions.durable.compaction import KEY_BYTES, Seal
from sessions.journal.file_state import compaction_key
from sessions.journal.places import MEMORY, in_postgres

log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 16


def seal_for(options: JournalOptions, fingerprint: bytes, model: str) -> Seal:
    """A key that signs for a model by that name, and for everything that decides the token ids of
    its texts.

    Raises:
        OptionError: the option's file is no key, or cannot be read.
    """
    return Seal(_key(options, fingerprint), fingerprint + model.encode("utf-8", "surrogatepass"))


def _key(options: JournalOptions, fingerprint: bytes) -> bytes:
    if options.compaction_key is not None:
        return _given(Path(os.path.expanduser(options.compaction_key)))
    place = options.place
    if place == MEMORY or (place is not None and in_postgres(place)):
        log.warning(
            "compaction items end with this process: give --compaction-key FILE, so that they are "
            "taken after a restart and by other servers"
        )
        return secrets.token_bytes(KEY_BYTES)
    file = compaction_key(journal_file(options, fingerprint))
    try:
        return _beside(file)
    except OSError as error:
        log.warning(
            "compaction items end with this process: %s cannot be used: %s", file, error.strerror
        )
        return secrets.token_bytes(KEY_BYTES)


def _given(file: Path) -> bytes:
    try:
        key = read_named(file, _MOST_BYTES)
    except FileNotFoundError as error:
        raise OptionError(f"--compaction-key {file}: {error.strerror}") from error
    except UnfitFile as error:
        raise OptionError(f"--compaction-key {file}: {error.reason}") from error
    if len(key) < KEY_BYTES:
        raise OptionError(f"--compaction-key {file}: fewer than {KEY_BYTES} bytes")
    return key


def _beside(file: Path) -> bytes:
    """The key in that file, which is made whole or not at all."""
    if not file.exists():
        made = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(secrets.token_bytes(KEY_BYTES))
                out.flush()
                os.fsync(out.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(made, file)  # whoever comes second takes the first one's
        finally:
            made.unlink()
    try:
        key = read_named(file, _MOST_BYTES)
    except UnfitFile as error:
        raise OSError(0, error.reason) from error
    if len(key) < KEY_BYTES:
        raise OSError(0, f"fewer than {KEY_BYTES} bytes")
    return key
