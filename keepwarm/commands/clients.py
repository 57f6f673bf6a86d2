"""``keepwarm clients``: configurations of other programs for a server that runs.

What a client cannot know by itself, the served model's name and its window, is asked of the server.
No key is printed: each configuration says where the client finds it.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

import click

from keepwarm.commands.chat_settings import CHAT_SETTINGS
from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import base_url, key_of, values_of
from tools_api.sdk.environment import KEY_VARIABLE

TIMEOUT_S = 10.0
MOST_BYTES = 1 << 20
_MOST_OUTPUT = 32_000
"""Tokens that coding agents ask for at most in an answer, where the window has room for them."""
_PLAIN = {"ws": "http", "wss": "https"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWindow:
    """A server as its clients have to know it."""

    base_url: str
    """The server's address with ``/v1``."""
    model: str
    window: int
    """Tokens of the model's context, prompt and answer together."""

    @property
    def output(self) -> int:
        """Tokens of an answer that leave most of the window to the prompt."""
        return max(min(self.window // 4, _MOST_OUTPUT), 1)

    @property
    def threshold(self) -> int:
        """Tokens of a context that is to be compacted, as the server would by itself."""
        return max(self.window * 4 // 5, 1)

    @property
    def root_url(self) -> str:
        """The server's address without ``/v1``."""
        return self.base_url.removesuffix("/v1")


class NoServer(click.ClickException):
    """The server could not be asked."""


def served(url: str, key: str | None) -> ServedWindow:
    """Ask a server.

    Raises:
        NoServer: it does not answer, refuses, or says nothing of a window.
    """
    request = urllib.request.Request(f"{url}/models")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            models = json.loads(answer.read(MOST_BYTES))["data"]
        model = next((each for each in models if each["id"] == "default"), models[0])
        return ServedWindow(base_url=url, model=model["id"], window=int(model["max_model_len"]))
    except urllib.error.HTTPError as error:
        error.close()
        why = "; give it a key with --api-key" if error.code in (401, 403) else ""
        raise NoServer(f"{url}/models answers HTTP {error.code}{why}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", None) or error).strip()
        raise NoServer(f"{url} does not answer: {reason}") from error
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise NoServer(f"{url}/models says nothing of a model and its window") from error


def codex(found: ServedWindow) -> str:
    """``~/.codex/config.toml``."""
    return f"""\
# ~/.codex/config.toml
model = {json.dumps(found.model)}
model_provider = "keepwarm"
model_context_window = {found.window}
model_auto_compact_token_limit = {found.threshold}

[model_providers.keepwarm]
name = "Keepwarm"  # by the name "OpenAI" Codex has the server compact, which costs less
base_url = {json.dumps(found.base_url)}
wire_api = "responses"
supports_websockets = true
# env_key = "{KEY_VARIABLE}"  # where the server has keys"""


def claude_code(found: ServedWindow) -> str:
    """Lines for a shell that point Claude Code at the server."""
    return f"""\
export ANTHROPIC_BASE_URL={quote(found.root_url)}
export ANTHROPIC_AUTH_TOKEN="${{{KEY_VARIABLE}:-none}}"
export ANTHROPIC_MODEL={quote(found.model)}
export ANTHROPIC_SMALL_FAST_MODEL={quote(found.model)}
export CLAUDE_CODE_MAX_CONTEXT_TOKENS={found.window}
export CLAUDE_CODE_AUTO_COMPACT_WINDOW={found.window}
export CLAUDE_CODE_MAX_OUTPUT_TOKENS={found.output}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"""


def opencode(found: ServedWindow) -> str:
    """An ``opencode.json`` that points OpenCode at the server."""
    model = {"name": found.model, "limit": {"context": found.window, "output": found.output}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Keepwarm",
        "options": {"baseURL": found.base_url, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {found.model: model},
    }
    config: dict[str, Any] = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"keepwarm/{found.model}",
        "provider": {"keepwarm": provider},
    }
    return json.dumps(config, indent=2)


def openai(found: ServedWindow) -> str:
    """Lines for a shell, for what reads the variables of ``openai``."""
    return f"""\
export OPENAI_BASE_URL={quote(found.base_url)}
export OPENAI_API_KEY="${{{KEY_VARIABLE}:-none}}"
# the model is {found.model}, its window {found.window} tokens"""


def anthropic(found: ServedWindow) -> str:
    """Lines for a shell, for what reads the variables of ``anthropic``."""
    return f"""\
export ANTHROPIC_BASE_URL={quote(found.root_url)}
export ANTHROPIC_API_KEY="${{{KEY_VARIABLE}:-none}}"
# the model is {found.model}, its window {found.window} tokens"""


CONFIGURED: dict[str, Callable[[ServedWindow], str]] = {
    "codex": codex,
    "claude-code": claude_code,
    "opencode": opencode,
    "openai": openai,
    "anthropic": anthropic,
}
"""Configurations by the name of the client."""


def run(given: Given) -> int:
    """Print a client's configuration; returns the exit status."""
    values = values_of("chat", given)
    url = base_url(values)
    scheme = urlsplit(url).scheme
    plain = _PLAIN.get(scheme, scheme) + url[len(scheme) :]
    found = served(plain.rstrip("/"), key_of(values))
    click.echo(CONFIGURED[given.arguments["client"]](found))
    return 0


COMMAND = settings_command(
    "clients",
    [setting for setting in CHAT_SETTINGS if setting.name in ("url", "api_key")],
    run,
    help="Print the configuration of a client for a server that runs.\n\n"
    "The model's name and its window are asked of the server. No key is printed: where the server "
    f"has keys the client is to find one in {KEY_VARIABLE}.",
    more=[click.Argument(["client"], type=click.Choice(list(CONFIGURED)))],
)
