"""``keepwarm top``: which server, with which key, how often.

Needs the extra ``top`` and nothing of the server's, so that it runs where none is installed.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from keepwarm.top.app import Top
from keepwarm.top.cluster_app import ClusterTop
from keepwarm.top.feed import Feed
from tools_api.sdk.environment import check_key

URL_VARIABLE = "KEEPWARM_URL"
KEY_VARIABLE = "KEEPWARM_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8080"


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as the other commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}. See '{self.prog} --help'.\n")


def parser() -> argparse.ArgumentParser:
    """The options of ``keepwarm top``."""
    made = _Parser(
        prog="keepwarm top",
        description="A server's sessions in the terminal: cost, cache hits, state, curves.",
    )
    made.add_argument(
        "--url",
        help=f"the server, as http://host:port; default: {URL_VARIABLE} or {DEFAULT_URL}",
    )
    made.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"a key of the server's, better in {KEY_VARIABLE}; an operator's shows all tenants",
    )
    made.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="between two looks; default: 2"
    )
    made.add_argument(
        "--cluster",
        action="store_true",
        help="the servers of its cluster instead; needs an operator's key where there are keys",
    )
    return made


def top(words: Sequence[str], environment: Mapping[str, str]) -> Top | ClusterTop:
    """Run ``keepwarm top WORDS``. Ends the program with status 2 for options that make no sense."""
    options = parser()
    arguments = options.parse_args(words)
    if not 0.1 <= arguments.every <= 3600:
        options.error(f"--every {arguments.every:g} is not in 0.1..3600")
    url = arguments.url or environment.get(URL_VARIABLE) or DEFAULT_URL
    key = arguments.api_key or environment.get(KEY_VARIABLE) or None
    try:
        check_key(key, "--api-key" if arguments.api_key else KEY_VARIABLE)
    except ValueError as error:
        options.error(str(error))
    try:
        feed = Feed(url, key)
    except ValueError as error:
        options.error(f"--url: {error}")
    if arguments.cluster:
        return ClusterTop(feed, every_s=arguments.every)
    return Top(feed, every_s=arguments.every)


def main(words: Sequence[str]) -> int:
    """Entry point, ``words`` with the command's own name; returns the exit status."""
    app = top(words[1:], os.environ)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # which is where it is drawn
        print("keepwarm: error: top needs a terminal", file=sys.stderr)
        return 1
    app.run()
    return app.return_code or 0
