"""Codex on ``keepwarm serve``: a home of its own with one provider, and a question.

``npm install -g @openai/codex``, then start ``keepwarm serve``, then:
python examples/frameworks/codex_agent.py [URL [CODEX]]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

QUESTION = "Is anything planned?"
CONFIG = """
model = "default"
model_provider = "keepwarm"

[model_providers.keepwarm]
name = "keepwarm"
base_url = "{url}"
wire_api = "responses"
supports_websockets = true
"""


def main(url: str = "http://127.0.0.1:8080/v1", codex: str = "codex") -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder, "home"), Path(folder, "work")
        home.mkdir()
        work.mkdir()
        (home / "config.toml").write_text(CONFIG.format(url=url), encoding="utf-8")
        done = subprocess.run(
            [codex, "exec", "--skip-git-repo-check", "--json", QUESTION],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"CODEX_HOME": str(home)},
        )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        item = json.loads(line).get("item", {}) if line.startswith("{") else {}
        if item.get("type") == "agent_message":
            print(item["text"])


if __name__ == "__main__":
    main(*sys.argv[1:])
