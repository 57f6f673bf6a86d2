"""Which commands there are, with what each does, in a line. Loads nothing, so that the base install
can tell of them as well."""

COMMANDS = {
    "serve": "Serve a model over WebSocket and HTTP.",
    "chat": "Talk to a session of a server, with tools of your own.",
    "demo": "Serve a model and play an agent with three tools.",
    "pull": "Fetch a model from the hub by name, for serve --model hub:NAME.",
    "doctor": "Look whether a server would start here, and say what to do.",
    "sessions": "Show what is in a journal, and take things out of it.",
    "cluster": "Put HAProxy before several servers that share a journal.",
    "keys": "Make keys, and the rows that stand for them in a tenants file.",
    "clients": "Print the configuration of Codex, Claude Code and others for a server.",
    "top": "Watch a server's sessions in the terminal.",
    "config": "Show every option and where its value comes from.",
}
