"""``keepwarm demo``: the example agent against a server of its own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import click

from keepwarm import ApiError, ConnectionLost
from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import base_url, key_of, values_of, warn_of_strays
from keepwarm.demo.child_server import ServerDidNotStart
from keepwarm.demo.play import TookTooLong, run_demo
from keepwarm.demo.settings import DEMO_SETTINGS

HELP = """Serve a model and play an agent with three tools: one session, then several at once.

Needs no network, no GPU and no key."""


def run(given: Given) -> int:
    """Play it; returns the exit status."""
    warn_of_strays()
    values = values_of("demo", given)
    options = dict(values)
    if options["url"]:
        options |= {"url": base_url(values), "api_key": key_of(values)}
    try:
        with _told_to_stop():
            run_demo(**options)
    except ServerDidNotStart as error:
        told = [line for line in str(error).splitlines() if "keepwarm: error: " in line]
        reason = told[-1].partition(": error: ")[2] if told else str(error)
        raise click.ClickException(reason) from error
    except (ApiError, ConnectionLost, TookTooLong) as error:
        raise click.ClickException(str(error)) from error
    return 0


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """SIGTERM ends what runs here as Ctrl-C does: no server is left behind."""

    told = False

    def end(number: int, _: object) -> None:
        nonlocal told
        told = True
        signal.raise_signal(signal.SIGINT)

    before, interrupt = signal.signal(signal.SIGTERM, end), signal.getsignal(signal.SIGINT)
    if interrupt is signal.SIG_IGN:  # behind a shell's "&", where a loop would leave it so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        if told:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


COMMAND = settings_command("demo", DEMO_SETTINGS, run, help=HELP)
