"""``openai``: turns in the background, polled, streamed from an event on, cancelled; ``http``."""

import time
from typing import Any

import openai
from common import TALK, LongStory, Server, arguments, report, schema_of

URL, _ = arguments()
CLIENT: Any = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)


def begun(**fields: Any) -> Any:
    return CLIENT.responses.create(model="default", input=TALK, background=True, **fields)


def polled(response: Any) -> Any:
    """As it ends, within a minute."""
    until = time.monotonic() + 60
    while response.status in ("queued", "in_progress") and time.monotonic() < until:
        time.sleep(0.02)
        response = CLIENT.responses.retrieve(response.id)
    return response


def turn() -> Any:
    first = begun()
    ended = polled(first)
    events = list(CLIENT.responses.retrieve(first.id, stream=True))
    later = list(CLIENT.responses.retrieve(first.id, stream=True, starting_after=2))
    return {
        "began": first.status,
        "status": ended.status,
        "text": ended.output_text,
        "streamed": "".join(e.delta for e in events if e.type == "response.output_text.delta"),
        "numbers": [event.sequence_number for event in events],
        "later": [event.sequence_number for event in later],
    }


def cancelled() -> Any:
    server = Server(URL)
    form = {"type": "json_schema", "name": "story", "strict": True, "schema": schema_of(LongStory)}
    running = begun(text={"format": form})
    ended = polled(CLIENT.responses.cancel(running.id))
    return {"status": ended.status, "cancelled": server.cancelled_within()}


report(turn=turn(), cancelled=cancelled())
