"""``keepwarm serve``: options to a server."""

import os

import click

from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import strays, values_of
from sessions.command.begin_again import has_begun
from sessions.command.hub import with_model_here
from sessions.command.options import in_the_users_words, read_serve_options
from sessions.command.serve import run as serve
from sessions.command.serve_settings import SERVE_SETTINGS


def run(given: Given) -> int:
    """Serve with the options given; returns the exit status."""
    has_begun()
    values = values_of("serve", given)
    options = read_serve_options(values, os.environ)
    options = with_model_here(options, lambda line: click.echo(line, err=True))
    return serve(options, lambda message: in_the_users_words(message, values), strays())


COMMAND = settings_command(
    "serve", SERVE_SETTINGS, run, help="Serve a model over WebSocket and HTTP."
)
