"""Tests of agents without a server: scripted answers, cuts, errors and budgets.

    from keepwarm.testing import ScriptedServer, call

    server = ScriptedServer([call("get_price", product="lamp"), "It is 24."])
    with server.client() as client:
        assert client.session(tools=[get_price]).run("How much?").text == "It is 24."

An answer is a text, a ``call``, a list of both, or what one of the functions here makes. No socket
is opened, no model runs, torch is not loaded; what a client gets are a real server's frames.
"""

from keepwarm.scripted.answers import (
    ScriptedCall,
    ScriptedText,
    ScriptedTurn,
    call,
    call_text,
    cut,
    fail,
    hold,
    refuse,
    say,
    stop,
    think,
)
from keepwarm.scripted.cassettes import Cassette, recording
from keepwarm.scripted.server import AskedTurn, ScriptedServer

__all__ = [
    "AskedTurn",
    "Cassette",
    "ScriptedCall",
    "ScriptedServer",
    "ScriptedText",
    "ScriptedTurn",
    "call",
    "call_text",
    "cut",
    "fail",
    "hold",
    "recording",
    "refuse",
    "say",
    "stop",
    "think",
]
