"""Tools of ``openai-agents`` that it runs, or that a search finds; ``websocket`` and ``http``.

The calls are asked for, and nothing of what the model wrote is run.
"""

import asyncio
from typing import Any, Literal

import agents
import openai
from agents.editor import ApplyPatchResult
from common import arguments, report
from pydantic import BaseModel

URL, WAY = arguments()
agents.set_tracing_disabled(True)
CLIENT = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
model = agents.OpenAIResponsesModel if WAY == "http" else agents.OpenAIResponsesWSModel
seen: dict[str, list[Any]] = {"shell": [], "local_shell": [], "apply_patch": [], "found": []}
running: list[Any] = []
"""The agent that runs."""


class Answer(BaseModel):
    """What the last turn is bound to."""

    pieces: Literal[1, 7]


def saw(name: str, what: Any) -> None:
    """A tool has run: the next turn answers."""
    seen[name].append(what)
    running[-1].model_settings.tool_choice = "none"


def shell(request: Any) -> agents.ShellResult:
    saw("shell", request.data.action.commands)
    commands = request.data.action.commands
    return agents.ShellResult(output=[agents.ShellCommandOutput(stdout="a.py\n") for _ in commands])


def local_shell(request: Any) -> str:
    saw("local_shell", list(request.data.action.command))
    return "a.py"


class Editor:
    """Edits nothing."""

    def _seen(self, operation: Any) -> ApplyPatchResult:
        saw("apply_patch", [operation.type, operation.path])
        return ApplyPatchResult(status="completed", output="done")

    create_file = update_file = delete_file = _seen


@agents.function_tool(defer_loading=True)
def get_stock(product: str) -> str:
    """How many pieces of a product are in stock."""
    saw("found", product)
    return "7"


async def asked(tool: Any, choice: str, *more: Any) -> dict[str, Any]:
    """A run whose first turn has to call something; the types of the items it led to."""
    agent: Any = agents.Agent(
        name="desk",
        model=model("default", CLIENT),
        model_settings=agents.ModelSettings(
            temperature=0, tool_choice=choice, parallel_tool_calls=False, max_tokens=400
        ),
        tools=[tool, *more],
        output_type=Answer,
        reset_tool_choice=False,
    )
    running.append(agent)
    result = await agents.Runner.run(agent, "What is in stock?", max_turns=4)
    items = [item.raw_item for item in result.new_items]
    kinds = [item["type"] if isinstance(item, dict) else item.type for item in items]
    return {"kinds": kinds, "answer": str(result.final_output)}


async def main() -> None:
    runs = {
        "shell": await asked(agents.ShellTool(executor=shell), "shell"),
        "local_shell": await asked(agents.LocalShellTool(executor=local_shell), "required"),
        "apply_patch": await asked(agents.ApplyPatchTool(editor=Editor()), "apply_patch"),
        "tool_search": await asked(agents.ToolSearchTool(), "required", get_stock),
    }
    report(runs=runs, seen=seen)


asyncio.run(main())
