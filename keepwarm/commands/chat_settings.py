"""Settings of ``keepwarm chat``."""

from sessions.command.settings import Setting

CHAT_SETTINGS = (
    Setting(
        name="url",
        default="http://127.0.0.1:8080/v1",
        metavar="URL",
        help="the server, as http://host:port",
    ),
    Setting(name="api_key", metavar="KEY", secret=True, help="a key of the server's"),
    Setting(name="model", prefix="CHAT_", help="a name of the model, where it has several"),
    Setting(name="instructions", prefix="CHAT_", help="what the model is told before all else"),
    Setting(
        name="tools",
        prefix="CHAT_",
        kind="path",
        metavar="FILE",
        help="Python file whose @tool functions the model may call; the file is run",
    ),
    Setting(
        name="session", prefix="CHAT_", metavar="NAME", help="name of the session; else a new one"
    ),
    Setting(
        name="max_output_tokens",
        prefix="CHAT_",
        kind="whole",
        bounds=(1, 1 << 24),
        help="output tokens of a turn; else as the server says",
    ),
    Setting(
        name="temperature",
        prefix="CHAT_",
        kind="number",
        default=0.0,
        bounds=(0, 2),
        help="0 takes the likeliest token each time",
    ),
)
