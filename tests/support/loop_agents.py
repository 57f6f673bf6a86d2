"""Agents that play whatever agents do, at a server that is killed under them.

Free text and forced calls, greedy and drawn, forks, turns behind older ones, steering, cancels,
headers that change, contexts that are cut or recast. What an agent was told had ended is where it
goes on, also at the next server.
"""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidMessage

from tests.support.wire_client import TERMINAL, WireClient

Wire = dict[str, Any]
TOOLS = [
    {
        "type": "function",
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {
                "n": {"enum": [1, 2, 3]},
                "word": {"type": "string", "maxLength": 6},
            },
            "required": ["n", "word"],
            "additionalProperties": False,
        },
        "strict": True,
    },
    {
        "type": "function",
        "name": "put",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        },
        "strict": True,
    },
]
RULES = "You keep the books of a small shop, and say what you do in a few words. "
LOST = {"engine_died", "server_died", "engine_restarting"}
TOO_LONG = "context_length_exceeded"


class LoopAgent:
    """One agent: a connection, turn after turn; what it was told is kept."""

    def __init__(self, name: str, seed: int, counts: Counter[str], *, window: int) -> None:
        """``window``: tokens of the longest context."""
        self._name = name
        self._rng = random.Random(f"{seed}/{name}")
        self._counts = counts
        self._window = window
        self._told: list[Wire] = []
        """Responses of the session that it plays, the newest last."""
        self._older: list[Wire] = []
        self._asked: list[Wire] = []
        """All that went both ways in the present turn."""
        self._sessions = 0
        self._header: Wire = {}
        self._context: Wire = {}
        self._begin()

    def _begin(self) -> None:
        rng = self._rng
        self._sessions += 1
        self._older += self._told[-2:]
        self._told = []
        self._header = {"instructions": RULES * rng.choice([1, 1, 2])}
        if rng.random() < 0.7:
            self._header["tools"] = TOOLS
        self._context = rng.choice(
            [
                {"truncation": "auto"},
                {"truncation": "auto"},
                {
                    "context_management": [
                        {"type": "compaction", "compact_threshold": self._window * 2 // 3}
                    ],
                    "truncation": "auto",
                },
                {},
            ]
        )

    async def play(self, url: str, until: asyncio.Event) -> None:
        """Until ``until`` or until the server is gone."""
        with contextlib.suppress(ConnectionClosed, OSError, InvalidMessage):
            client = await WireClient.open(url)
            while not until.is_set():
                await self._turn(client)
            await client.close()

    async def _turn(self, client: WireClient) -> None:
        rng, fields = self._rng, self._fields()
        self._asked = [fields]
        steered = rng.random() < 0.15
        cancelled = not steered and rng.random() < 0.1
        after = rng.randrange(6)
        await client.send(**fields)
        response_id, deltas, pending = "", 0, 1
        while pending:
            event = await client.event()
            self._asked.append(event)
            kind = event["type"]
            if kind == "response.created":
                response_id = event["response"]["id"]
            elif kind.endswith(".delta"):
                deltas += 1
                if deltas == after + 1 and (steered or cancelled) and response_id:
                    message: Wire = {"type": "response.cancel", "response_id": response_id}
                    if steered:
                        message = {
                            "type": "response.steer",
                            "previous_response_id": response_id,
                            "input": rng.choice(["Stop.", "Rather the other one."]),
                        }
                    await client.send(**message)
                    self._asked.append(message)
                    self._counts["steered" if steered else "cancelled"] += 1
            elif kind == "response.steer.accepted":
                self._counts["steer accepted"] += 1
            elif kind in TERMINAL:
                details = event.get("response", {}).get("incomplete_details") or {}
                if details.get("reason") != "steered":
                    pending -= 1
                self._ended(event)

    def _ended(self, event: Wire) -> None:
        kind = event["type"]
        if kind == "error":
            error = event["error"]
            self._counts[f"error {error['code']}"] += 1
            if error["code"] in ("response_not_found", "no_active_response"):
                return
            allowed = {TOO_LONG, "previous_response_not_found", "server_error", "invalid_prompt"}
            assert error["code"] in allowed, (event, self._asked)
            self._begin()
            return
        response = event["response"]
        self._counts["ended"] += 1
        if kind == "response.failed":
            reason = response["keepwarm"]["reason"]
            self._counts[f"failed {reason}"] += 1
            return
        self._counts[response["status"]] += 1
        reason = (response.get("incomplete_details") or {}).get("reason")
        if reason is not None:
            self._counts[f"incomplete {reason}"] += 1
        self._counts["cut"] += any("truncation" in w for w in response["keepwarm"]["warnings"])
        self._counts["recast"] += bool(response["keepwarm"].get("context"))
        self._told.append(response)

    def _fields(self) -> Wire:
        rng = self._rng
        if len(self._told) > rng.randint(4, 14):
            self._begin()
        last = self._told[-1] if self._told else None
        session = f"{self._name}.{self._sessions}"
        kind = "begun" if last is None else "continued"
        if last is not None and rng.random() < 0.25:
            last = rng.choice(self._told + self._older[-4:])
            self._sessions += 1
            session, kind = f"{self._name}.{self._sessions}", "forked"
            self._told = [last]
        self._counts[kind] += 1
        fields: Wire = {
            **self._header,
            **self._context,
            "max_output_tokens": rng.choice([6, 14, 30, 60]),
            "keepwarm": {"session": session},
            "input": self._input(last),
        }
        if last is not None:
            fields["previous_response_id"] = last["id"]
        if rng.random() < 0.2:
            fields["keepwarm"]["steer"] = "now"
        self._sampling(fields)
        if "tools" in fields and rng.random() < 0.5:
            fields["tool_choice"] = "required"
            fields["max_output_tokens"] = 60
            self._counts["calls forced"] += 1
        return fields

    def _input(self, last: Wire | None) -> list[Wire]:
        rng = self._rng
        calls = [] if last is None else last["output"]
        outputs: list[Wire] = [
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": f"{rng.randrange(100)} " * rng.choice([1, 10, 60]),
            }
            for call in calls
            if call["type"] == "function_call" and call["status"] == "completed"
        ]
        if not outputs or rng.random() < 0.2:
            words = f"{rng.randrange(1000)} is it. " * rng.choice([1, 1, 5, 25])
            outputs.append({"role": "user", "content": words})
        return outputs

    def _sampling(self, fields: Wire) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            fields["temperature"] = 0
            return
        fields["temperature"] = rng.choice([0.5, 1.0, 1.3])
        fields["top_p"] = rng.choice([1.0, 0.8])
        more = fields["keepwarm"]["sampling"] = {"seed": rng.randrange(1 << 40)}
        if rng.random() < 0.3:
            more |= {"top_k": rng.choice([3, 40]), "repetition_penalty": 1.2}
