"""Where a server keeps its journal: what the command line says, and opening it.

Always true: without a word the journal is a file of its user's own, one for each tokenizer and
chat format; with ``:memory:`` there is none.
"""

import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import xxhash

from runtime.folder_files import TOKENIZER, UnfitFile, read_within
from sessions.command.settings import OptionError, Values, fault_of_folder
from sessions.command.speech import Tokenised
from sessions.ground import JOURNAL
from sessions.journal.adoption import Loader
from sessions.journal.errors import (
    JournalAbsent,
    JournalUnavailable,
)
from sessions.journal.inspection import Seen, look_at
from sessions.journal.journal import Journal
from sessions.journal.places import MEMORY, in_postgres, open_postgres, state_folder
from sessions.journal.records import TENANT_ACCOUNT, TurnRecord
from sessions.journal.rescue import Rescue
from sessions.journal.sqlite import SqliteJournal
from sessions.turns.commits import Commits
from sessions.turns.recollection import Recollection
from sessions.turns.service import Service
from sessions.wire.journal_desk import JournalDesk
from sessions.wire.standing import Standing

log = logging.getLogger(__name__)

_FORMAT = b"1"
"""Raise it when a chat format writes the same items as other tokens."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """A journal, completely described."""

    place: str | None
    """A file, ``:memory:`` or a PostgreSQL address; None: a file in the user's state folder."""
    shared: bool
    retokenise: bool
    """Whether turns that other tokenizers wrote are taken over."""
    keep_s: float
    state_folder: Path
    compaction_key: str | None = None
    """A file with the key that signs compaction items; None: one beside the journal's file."""
    rescue_folder: Path | None = None
    """Where a journal is saved whose path names it no more; None: beside it."""
    ready_without: bool = False
    """A server is ready also while the shared journal is out of reach."""


def read_journal_options(values: Values, environment: Mapping[str, str]) -> JournalOptions:
    """Raises OptionError: options contradict each other."""
    place = values["journal"] or None
    if place is not None and "://" in place and not in_postgres(place):
        raise OptionError(
            f"{values.label('journal')} {place.partition('://')[0]}://... is neither a file, nor "
            f"postgresql://..., nor {MEMORY}"
        )
    if place is not None and not in_postgres(place):
        place = os.path.expanduser(place)
    if values["journal_shared"] and place == MEMORY:
        raise OptionError(
            f"{values.label('journal_shared')} needs a journal that others can reach, "
            f"{values.label('journal')} names none"
        )
    shared = values["journal_shared"] or (place is not None and in_postgres(place))
    if values["ready_without_journal"] and not shared:
        raise OptionError(
            f"{values.label('ready_without_journal')} is for a journal that servers share: a "
            "server that has its own to itself is of no use without"
        )
    rescue = values["journal_rescue_folder"]
    if rescue and (fault := fault_of_folder(Path(os.path.expanduser(rescue)))):
        raise OptionError(f"{values.label('journal_rescue_folder')} {rescue}: {fault}")
    return JournalOptions(
        place=place,
        shared=values["journal_shared"],
        rescue_folder=Path(os.path.expanduser(rescue)) if rescue else None,
        ready_without=values["ready_without_journal"],
        retokenise=values["journal_foreign"] == "retokenise",
        keep_s=values["journal_keep_days"] * 86_400,
        state_folder=state_folder(environment),
        compaction_key=values["compaction_key"] or None,
    )


def fingerprint(of: Tokenised, chat_format: str | None = None) -> bytes:
    """A digest of everything that decides the token ids of items: the tokenizer and the chat
    format.

    Args:
        of: the model.
        chat_format: the format's description; None: it is what the special tokens choose.

    Raises:
        OptionError: a file of the tokenizer cannot be read within its bounds.
    """
    state = xxhash.xxh3_128(_FORMAT)
    state.update(f"{of.model_type}\0{of.vocab_size}\0".encode())
    if chat_format is not None:
        state.update(f"{chat_format}\0".encode(errors="replace"))
    for name in _TOKENIZER_FILES:
        file = Path(of.tokenizer_folder) / name
        try:
            content = read_within(file, TOKENIZER.most_bytes) if file.is_file() else b""
        except (UnfitFile, FileNotFoundError) as error:
            raise OptionError(str(error)) from error
        state.update(name.encode() + content)
    return state.digest()


def journal_file(options: JournalOptions, of: bytes) -> Path:
    """The file of a tokenizer's sessions; its folder is made."""
    if options.place is None:
        options.state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return journal_path(options, of)


def journal_path(options: JournalOptions, of: bytes) -> Path:
    """The journal's path, as ``open_journal`` would have it; no folder is made."""
    if options.place is not None:
        return Path(options.place)
    return options.state_folder / f"journal-{of.hex()[:12]}.sqlite3"


def look_at_journal(options: JournalOptions, of: bytes) -> Seen | None:
    """The state in which a server with these options would find its journal, which is not changed;
    None: a journal that it is going to make. Not for ``:memory:``.

    Raises:
        JournalError: the server would not start.
    """
    if options.place is None and not options.state_folder.exists():
        return None  # whether it can be made is asked of its folder
    if options.place is None or not in_postgres(options.place):
        return look_at(journal_path(options, of), shared=options.shared)
    try:
        with closing(
            open_postgres(options.place, fingerprint=of, owner="", beside=True)
        ) as journal:
            return Seen(sessions=len(journal.sessions()), num_bytes=0, whole=True)
    except JournalAbsent:
        return None


def open_journal(options: JournalOptions, of: bytes) -> Journal | None:
    """None: nothing is to be kept.

    Raises:
        JournalError: it cannot be opened; the message is for people.
    """
    if options.place == MEMORY:
        return None
    owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    if options.place is not None and in_postgres(options.place):
        return open_postgres(options.place, fingerprint=of, owner=owner, patient=True)
    try:
        file = journal_file(options, of)
    except OSError as error:
        raise JournalUnavailable(
            f"the folder {options.state_folder} cannot be made: {error.strerror}; name a file with "
            f"--journal, or keep nothing with '--journal {MEMORY}'"
        ) from error
    return SqliteJournal(file, fingerprint=of, owner=owner, shared=options.shared, patient=True)


def with_journal(
    journal: Journal | None,
    options: JournalOptions,
    of: bytes,
    service: Service,
    standing: Standing | None = None,
) -> tuple[Service, JournalDesk | None]:
    """The service with its journal, if it is to have one, and who works with that.

    Args:
        of: fingerprint of what makes token ids here.
        standing: of the server in its cluster.

    Raises:
        JournalError: what is left of an earlier life cannot be read.
    """
    if journal is None:
        return service, None
    commits, store = Commits(journal), service.store
    service = replace(service, commits=commits, wall_clock=store.journal_clock)
    store.lasts()
    rescue = Rescue(journal, options.rescue_folder) if isinstance(journal, SqliteJournal) else None
    desk = JournalDesk(
        journal,
        _recollection(journal, options, of, service, commits),
        store,
        keep_s=options.keep_s,
        ground=service.ground,
        rescue=None if rescue is None else rescue.save,
        wall_clock=service.wall_clock,
    )
    if standing is not None:
        standing.quotas = service.store.quotas
    if desk.sharing is not None:
        desk.sharing.standing = standing
        commits.awake = desk.sharing.awake

    def left_behind() -> Callable[[], None]:
        left = journal.settle_left()
        return partial(_begin, desk, left, _spent(journal, service))

    try:
        left_behind()()
    except JournalUnavailable:
        try:  # a database may have hung up while the model was loaded
            left_behind()()
        except JournalUnavailable as error:
            desk.to_begin = left_behind
            desk.not_opened(str(error))
    if options.ready_without:
        service.ground.left_out = frozenset({JOURNAL})
    return service, desk


def _recollection(
    journal: Journal, options: JournalOptions, of: bytes, service: Service, commits: Commits
) -> Recollection:
    renderer = service.model.renderer if options.retokenise else None
    return Recollection(
        journal=journal,
        loader=Loader(journal, fingerprint=of, retokenise=renderer),
        store=service.store,
        commits=commits,
        wall_clock=service.wall_clock,
    )


def _spent(journal: Journal, service: Service) -> Callable[[], None]:
    """Read what the operator's budgets have left; what is returned has the service know it."""
    tenants, policies = journal.accounts_named(TENANT_ACCOUNT), journal.accounts_of_policies()
    offset_s = journal.clock_s() - service.store.wall_clock()

    return partial(
        service.store.load_spent,
        {name: account.spent for name, account in tenants.items()},
        {key: account.spent for key, account in policies.items()},
        clock_offset_s=offset_s,
    )


def _begin(desk: JournalDesk, left: Sequence[TurnRecord], load_spent: Callable[[], None]) -> None:
    if left:
        log.warning("turns were cut short by a server that died turns=%d", len(left))
    load_spent()
    desk.note_settled(left)
