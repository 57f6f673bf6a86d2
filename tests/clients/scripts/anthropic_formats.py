"""``anthropic`` against a model that writes nothing of its own accord: its calls are asked for."""

from typing import Any

import anthropic
from common import QUESTIONS, TOOLS, Forced, Loop, arguments, report, schema_of

URL, _ = arguments()
CLIENT = anthropic.Anthropic(
    base_url=URL.removesuffix("/v1"), api_key="none", max_retries=0, timeout=60
)
FUNCTIONS: Any = [
    {"name": name, "description": model.__doc__, "input_schema": schema_of(model)}
    for name, model in TOOLS.items()
]
CHOICES: Any = {"required": {"type": "any"}, "none": {"type": "none"}}

forced = Forced(Loop())
messages: Any = []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    for choice in forced.choices():
        message = CLIENT.messages.create(
            model="default",
            messages=messages,
            tools=FUNCTIONS,
            tool_choice=CHOICES.get(choice, {"type": "tool", "name": choice}),
            max_tokens=forced.room(choice),
        )
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        texts = [block.text for block in message.content if block.type == "text"]
        outputs = forced.took([(use.name, use.input) for use in uses], "".join(texts))
        forced.cached.append(message.usage.cache_read_input_tokens or 0)
        if uses:
            results = [
                {"type": "tool_result", "tool_use_id": use.id, "content": output}
                for use, output in zip(uses, outputs, strict=True)
            ]
            messages.append({"role": "user", "content": results})
report(turns=forced.turns, cached=forced.cached)
