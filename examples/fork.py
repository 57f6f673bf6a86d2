"""Three sub-agents fork from one warm session: what they share is computed once.

Start ``keepwarm serve``, then: python examples/fork.py [URL]
"""

import asyncio
import sys

from keepwarm import AsyncClient

RULES = " ".join(f"Rule {n}: answer as briefly as rule {n - 1} asks." for n in range(1, 40))
QUESTIONS = ("What is rule 3?", "What is rule 14?", "What is rule 15?")


async def main(*url: str) -> None:
    async with AsyncClient(*url) as client:
        parent = client.session(instructions="Know the rules.", max_output_tokens=32)
        warm = await parent.warm(RULES)
        print(f"parent: {warm.usage.input_tokens} tokens computed once")
        forks = [parent.fork() for _ in QUESTIONS]
        answers = await asyncio.gather(
            *(fork.respond(question) for fork, question in zip(forks, QUESTIONS, strict=True))
        )
    for question, answer in zip(QUESTIONS, answers, strict=True):
        usage = answer.usage
        print(f"{question} {usage.cached_tokens} of {usage.input_tokens} input tokens cached")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
