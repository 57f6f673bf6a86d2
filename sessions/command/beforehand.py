"""Parts of a server that are at hand before its model is loaded: its port, its tokenizer, its
journal.

Always true: what needs no weights is found wrong before any are loaded, which may take minutes.
"""

import contextlib
import errno
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from runtime.model.hub_models import PREFIX, HubName, is_hub_name
from sessions.command.adapters import fault_of_adapters, told_apart
from sessions.command.compaction_key import seal_for
from sessions.command.journal_options import fingerprint, open_journal
from sessions.command.options import ServeOptions
from sessions.command.preflight import fault_of_context, fault_of_model, known_source
from sessions.command.prices import check_budgets
from sessions.command.settings import OptionError
from sessions.command.speech import Speech, Tokenised, speech_of
from sessions.durable.compaction import Seal
from sessions.durable.ledger import PriceTable
from sessions.journal.journal import Journal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beforehand:
    """Parts of a server that need the model's small files alone."""

    speech: Speech
    fingerprint: bytes
    """A digest of everything that decides the token ids of items."""
    journal: Journal | None
    prices: PriceTable
    seal: Seal
    """Signs compaction items."""


def at_once(options: ServeOptions, cleanup: contextlib.AsyncExitStack) -> Beforehand | None:
    """``prepared``, if the model's files need not be waited for."""
    source = known_source(options.engine.model)
    return None if source is None else prepared(options, source, cleanup)


def prepared(
    options: ServeOptions, of: Tokenised, cleanup: contextlib.AsyncExitStack
) -> Beforehand:
    """Look up prices, read the tokenizer and the key of compaction items, and open the journal,
    which ``cleanup`` closes.

    Raises:
        OptionError: nothing can be said to the model, nobody knows what it costs, or the key is
            none.
        JournalError: the journal cannot be opened.
    """
    prices = prices_of(options)
    engine = options.engine
    speech = speech_of(
        engine.model,
        of,
        chat_format=engine.chat_format,
        cache_folder=engine.startup_profile_folder,
    )
    made_of = fingerprint(of, speech.description)
    if speech.how:
        log.info("chat format=%s reason=%s", speech.chat_format.name, speech.how)
    if speech.warning is not None:
        log.warning("calls may fail model=%s reason=%s", options.engine.model, speech.warning)
    journal = open_journal(options.journal, made_of)
    if journal is not None:
        cleanup.callback(journal.close)
    seal = seal_for(options.journal, made_of, names_of(options)[0])
    return Beforehand(speech=speech, fingerprint=made_of, journal=journal, prices=prices, seal=seal)


def loaded_first(
    options: ServeOptions, of: Tokenised, cleanup: contextlib.AsyncExitStack
) -> Beforehand:
    """``prepared`` of a model whose files had to be waited for. Raises as that, and OptionError
    where its engine, which is loaded, would have had to know its chat format."""
    before = prepared(options, of, cleanup)
    if before.speech.description is not None and options.engine.chat_format is None:
        raise OptionError(
            f"--model {options.engine.model}: its config.json is no regular file, so its chat "
            "template is read too late: give --chat-format NAME"
        )
    return before


def names_of(options: ServeOptions) -> tuple[str, frozenset[str]]:
    """The served model's name in answers, and all names that requests may use."""
    own = options.engine.model
    if not is_hub_name(own):
        return options.model_name or own, frozenset({"default", own})
    repository = HubName.parse(own).repository
    names = {"default", own, repository, f"{PREFIX}{repository}"}
    return options.model_name or repository, frozenset(names)


def all_names_of(options: ServeOptions) -> frozenset[str]:
    """All names of the served model, that in answers among them; no adapter's."""
    name, aliases = names_of(options)
    return aliases | {name}


def identity_of(options: ServeOptions, made_of: bytes) -> str:
    """Of a cluster's servers the same for all, in words: the model, what makes token ids of items,
    and the adapters with their contents.

    Raises:
        OptionError: an adapter cannot be read.
    """
    identity = f"{names_of(options)[0]} ({made_of.hex()[:12]})"
    adapters = told_apart(options.engine.adapters)
    return f"{identity} with the adapters {adapters}" if adapters else identity


def prices_of(options: ServeOptions) -> PriceTable:
    """Prices of the served model, and of its adapters that have some of their own.

    Raises:
        PriceError: as ``check_budgets``, ``PriceFile.of`` and ``PriceFile.with_adapters``.
    """
    prices = options.prices
    if options.price_file is not None:
        name, aliases = names_of(options)
        prices = options.price_file.of((name, *sorted(aliases - {name, "default"})))
        adapters = (each.name for each in options.engine.adapters)
        prices = options.price_file.with_adapters(prices, adapters)
    check_budgets(options.tenants.policies, prices)
    return prices


def place(options: ServeOptions) -> socket.socket:
    """A bound socket that does not listen yet, if there is also something to serve.

    Raises:
        OptionError: the address is not ours, the port is taken, the model is not there or not for
            such long transcripts, an adapter is not there or has a name of the model, the disk's
            folder cannot be made.
    """
    bound = _bind(options.host, options.port)
    fault = _fault(options)
    if fault is not None:
        bound.close()
        raise OptionError(fault)
    return bound


def _fault(options: ServeOptions) -> str | None:
    engine = options.engine
    fault = fault_of_model(engine.model)
    if fault is not None:
        return f"--model {fault}"
    return (
        fault_of_context(engine.model, engine.max_context_tokens)
        or fault_of_adapters(engine.adapters, all_names_of(options))
        or _fault_of_disk(engine.disk_kv_folder)
    )


def _fault_of_disk(folder: str | None) -> str | None:
    """Why there can be no such folder; if there can, it is made."""
    if folder:
        try:
            Path(os.path.expanduser(folder)).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            return f"--disk-kv-folder {folder} cannot be made: {error.strerror}"
    return None


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        OptionError: the address is not ours or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        told = f"cannot listen on {host}, port {port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            told += (
                "; if it is a keepwarm that runs there, use it, else --port 0 takes a free one (of "
                "two keepwarms each needs a --journal of its own)"
            )
        raise OptionError(told) from error
    return bound
