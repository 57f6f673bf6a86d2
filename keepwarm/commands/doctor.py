"""``keepwarm doctor``: would ``keepwarm serve`` work here, with the same options, and fast?"""

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain

import click

from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import strays, values_of
from keepwarm.commands.screen import printable, wants_colour
from sessions.command.checks import findings
from sessions.command.finding import Finding, Verdict
from sessions.command.options import in_the_users_words, read_serve_options
from sessions.command.serve_settings import SERVE_SETTINGS

HELP = """Look at what a server needs: versions, model, port, limits, disk, device, kernels.

Takes the options of serve, and looks whether a server with them would start here. The exit
status is 1 where something is at fault."""
_COLOURS: dict[Verdict, str] = {"ok": "green", "note": "yellow", "fault": "red"}


def run(given: Given) -> int:
    """Print what is found, as it is found; returns the exit status."""
    values = values_of("serve", given)
    options = read_serve_options(values, os.environ)
    colour = wants_colour(sys.stdout, os.environ)
    verdicts = []
    for finding in chain(environment(strays()), findings(options, os.environ)):
        verdicts.append(finding.verdict)
        for line in lines(finding, colour=colour):
            click.echo(in_the_users_words(line, values), color=colour)
    return int("fault" in verdicts)


def environment(unread: Iterable[str]) -> Iterator[Finding]:
    """Variables of the environment that have no effect, if there are any."""
    for line in unread:
        advice = "'keepwarm config show' has every option; docs/commands.md their variables"
        yield Finding(what="environment", verdict="note", found=line, advice=advice)


def lines(finding: Finding, *, colour: bool) -> list[str]:
    """One finding; what to do about it on a line of its own."""
    verdict: str = finding.verdict
    shown = click.style(verdict, fg=_COLOURS[finding.verdict]) if colour else verdict
    told = [f"{shown}: {finding.what}: {printable(finding.found)}"]
    return told + [f"  {finding.advice}"] * bool(finding.advice)


COMMAND = settings_command("doctor", SERVE_SETTINGS, run, help=HELP)
