"""Settings of ``keepwarm demo``."""

from sessions.command.settings import Setting

DEMO_SETTINGS = (
    Setting(
        name="model",
        prefix="DEMO_",
        default="default",
        help="model of the server that is started, as for keepwarm serve",
    ),
    Setting(
        name="sessions",
        prefix="DEMO_",
        kind="whole",
        default=8,
        bounds=(1, 256),
        help="sessions of the second part",
    ),
    Setting(
        name="url",
        prefix="DEMO_",
        metavar="URL",
        help="start none and play against this server, e.g. http://127.0.0.1:8080/v1",
    ),
    Setting(
        name="api_key",
        prefix="DEMO_",
        metavar="KEY",
        secret=True,
        help="key of the server at --url",
    ),
    Setting(
        name="forced",
        prefix="DEMO_",
        kind="switch",
        default=False,
        help="name the tool of each turn, as is done for random weights",
    ),
    Setting(
        name="limit_seconds",
        prefix="DEMO_",
        kind="number",
        default=600.0,
        bounds=(1, 86400),
        help="the demo ends after so many seconds at the latest",
    ),
)
