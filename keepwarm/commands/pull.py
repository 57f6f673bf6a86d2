"""``keepwarm pull``: fetch a model by name, so that a server finds it."""

import click

from sessions.command.hub import fetch


def run(name: str, file: tuple[str, ...]) -> int:
    """Fetch a model, print its commit and folder; returns the exit status."""
    found = fetch(name, file, lambda line: click.echo(line, err=True))
    click.echo(f"{found.name} {found.folder}")
    return 0


COMMAND = click.Command(
    "pull",
    callback=run,
    params=[
        click.Argument(["name"], metavar="ORG/NAME[@REVISION]"),
        click.Option(
            ["--file"],
            metavar="FILE",
            multiple=True,
            help="of several files of weights in GGUF the one that is wanted",
        ),
    ],
    help="Fetch a model from the hub, whole and checked, for 'keepwarm serve --model hub:NAME'.\n\n"
    "HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and proxies mean what they mean to "
    "huggingface_hub.",
)
