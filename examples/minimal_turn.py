"""Two turns of one session: the second sends, and computes, only what is new.

Start a server with ``keepwarm serve``, then: python examples/minimal_turn.py [URL]
"""

import sys

from keepwarm import Client, Response, TextDelta


def main(*url: str) -> None:
    with Client(*url) as client:
        session = client.session(
            instructions="You are a helpful assistant. Be brief.", max_output_tokens=64
        )
        for question in ("What is a radix tree?", "And what is it good for?"):
            print(f"> {question}")
            for event in session.stream(question):
                if isinstance(event, TextDelta):
                    print(event.text, end="", flush=True)
                elif isinstance(event, Response):
                    usage = event.usage
                    print(
                        f"\n[{usage.input_tokens} tokens in, {usage.cached_tokens} of them cached, "
                        f"{usage.output_tokens} out]"
                    )


if __name__ == "__main__":
    main(*sys.argv[1:])
