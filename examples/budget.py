"""A hard budget: the session stops at the token, and a spent one starts nothing more.

Start ``keepwarm serve``, then: python examples/budget.py [URL]
"""

import sys

from keepwarm import Client, TurnFailed

BUDGET = {"output": 60}
"""Tokens that this session may emit in all its turns."""


def main(*url: str) -> None:
    with Client(*url) as client:
        session = client.session(keepwarm={"budget": BUDGET})
        spent = 0
        try:
            for turn in range(1, 100):
                response = session.respond(f"Tell me fact number {turn}.")
                spent += response.usage.output_tokens
                print(f"turn {turn}: {response.usage.output_tokens} tokens, {response.status}")
        except TurnFailed as failure:
            print(f"turn {turn} was not started: {failure}")
    print(f"{spent} of {BUDGET['output']} tokens spent")


if __name__ == "__main__":
    main(*sys.argv[1:])
