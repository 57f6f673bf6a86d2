"""The command ``keepwarm``, which writes down what its engine is asked for and what comes back.

Each request is kept with its whole prompt, so that ``tests.support.replay`` can play it again with
nothing of what was computed for others. The lines go to the file that ``RECORD_TURNS_TO`` names,
behind those of earlier servers; a server that is killed leaves whole lines. With ``RECORD_FORKED``
engines are forks (``tests.support.forked_engine``).
"""

import base64
import json
import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from runtime.messages import EngineInfo, EngineMessage, GenerationRequest, StepOutput, TokenArray
from runtime.process.engine_process import EngineProcess
from runtime.process.frames import encode_messages


class Recorder:
    """Follows the branches of one server's engines, and writes lines."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._branches: dict[str, TokenArray] = {}
        self._open: dict[str, str] = {}
        """The branch of each request that has not ended."""

    def sent(self, message: GenerationRequest) -> None:
        """A request goes to the engine."""
        prompt = message.new_tokens
        if message.base_branch_id is not None:
            base = self._branches[message.base_branch_id][: message.base_offset]
            assert len(base) == message.base_offset
            prompt = np.concatenate((base, prompt))
        self._branches[message.branch_id] = prompt
        self._open[message.request_id] = message.branch_id
        whole = replace(message, base_branch_id=None, base_offset=0, new_tokens=prompt)
        frame = base64.b64encode(encode_messages([whole])).decode()
        self._write({"request": message.request_id, "frame": frame})

    def received(self, output: StepOutput) -> None:
        """A step's tokens have come."""
        for each in output.outputs:
            branch = self._open.get(each.request_id)
            if branch is None:
                continue
            tokens = each.new_tokens
            self._branches[branch] = np.concatenate((self._branches[branch], tokens))
            finish = None if each.finish is None else each.finish.value
            if each.start is not None:
                self._write({"request": each.request_id, "cached": each.start.cached_tokens})
            if len(tokens) or finish:
                line = {"request": each.request_id, "tokens": tokens.tolist(), "finish": finish}
                self._write(line | ({"error": each.error_message} if each.error_message else {}))
            if each.finish is not None:
                del self._open[each.request_id]

    def started(self) -> None:
        """Another engine, to which none of the requests is known."""
        for name in self._open:
            self._write({"request": name, "tokens": [], "finish": "engine lost"})
        self._open.clear()

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class RecordedEngine(EngineProcess):
    """An ``EngineProcess`` beside which a ``Recorder`` writes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._recorder = Recorder(os.environ["RECORD_TURNS_TO"])

    async def start(self) -> EngineInfo:
        self._recorder.started()
        return await super().start()

    def send(self, messages: list[EngineMessage]) -> None:
        for message in messages:
            if isinstance(message, GenerationRequest):
                self._recorder.sent(message)
        super().send(messages)

    async def receive(self) -> StepOutput:
        output = await super().receive()
        self._recorder.received(output)
        return output


if __name__ == "__main__":
    from keepwarm.__main__ import main
    from sessions.command import serve

    if os.environ.get("RECORD_FORKED"):
        from sessions.wire import hub
        from tests.support import forked_engine

        forked_engine.use()
        hub.STEADY_S = 0.0
    serve.EngineProcess = RecordedEngine  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
