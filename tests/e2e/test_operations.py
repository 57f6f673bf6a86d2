"""``docs/operations.md`` is true: each of its commands does what it says, in the page's order."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from keepwarm.commands.main import main
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row
from tests.support.architecture import ROOT
from tests.support.postgres import MISSING, PROGRAMS, postgres

PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
RULES = (ROOT / "examples/monitoring/keepwarm.rules.yml").read_text(encoding="utf-8")
OPERATOR, ACME = "an-operators-key-0001", "a-key-of-acme-0001"
SESSION = "planner"
SYSTEMCTL = """\
#!/usr/bin/env bash
# The unit's start, stop and signals, of a server of this test alone.
set -eu
runs() { state=$(cut -d' ' -f3 "/proc/$1/stat" 2>/dev/null) && [ "$state" != Z ]; }
case "$1 ${@: -1}" in
  "start keepwarm")
    keepwarm serve --threads 1 >"$STATE/ready" 2>>"$STATE/log" &
    echo $! >"$STATE/pid"
    until [ -s "$STATE/ready" ]; do runs "$(cat "$STATE/pid")"; sleep 0.05; done ;;
  "stop keepwarm")
    kill -TERM "$(cat "$STATE/pid")"
    while runs "$(cat "$STATE/pid")"; do sleep 0.05; done ;;
  "kill keepwarm") kill "-${2#--signal=SIG}" "$(cat "$STATE/pid")" ;;
  *) exit 3 ;;
esac
"""
PROGRAMS_HERE = {
    "keepwarm": f'#!/usr/bin/env bash\nexec {sys.executable} -m keepwarm "$@"\n',
    "systemctl": SYSTEMCTL,
    "journalctl": (
        '#!/usr/bin/env bash\n[ "$*" = "--unit keepwarm --output cat" ] && cat "$STATE/log"\n'
    ),
}
SAYS: dict[str, str] = {
    "sessions backup": r"turns of 2 sessions, \d+ bytes, with the key",
    "sessions restore": r"what was there is now \S+\.replaced-",
    "sessions recover": r"recovered\.sqlite3: 2 turns of 2 sessions",
    'curl -sf "$URL/readyz"': r"^ready$",
    "keys check": r"deploy: tenant acme, tenant, sha256 ",
    "sessions delete": SESSION,
    "sessions vacuum": r"bytes smaller",
    "ticket-4711": r"X-Request-Id: ticket-4711",
    "journalctl": r"turn finished .*x_request_id=ticket-4712",
    "format=csv": r"^start,",
    "/metrics": r"^\d\d+$",
    "sessions copy": r"PostgreSQL: \d+ turns of \d+ sessions, .* counts and sums are those",
    "pg_restore": r"VACUUM",
}
"""By words of a command, what its block has to say."""


class Page:
    """A machine on which the page's commands are typed."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        (folder / "bin").mkdir()
        self.state.mkdir()
        for name, text in PROGRAMS_HERE.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "backups").mkdir()
        (folder / "tenants.toml").write_text(
            key_row(ApiKey.of(OPERATOR, tenant="ops", role=Role.OPERATOR, name="ops"))
            + key_row(ApiKey.of(ACME, tenant="acme", name="acme"))
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        assert PROGRAMS is not None
        self.environment = {
            "PATH": f"{folder / 'bin'}:{PROGRAMS}:{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "PYTHONPATH": str(ROOT),
            "STATE": str(self.state),
            "JOURNAL": str(folder / "journal.sqlite3"),
            "BACKUPS": str(folder / "backups"),
            "TENANTS": str(folder / "tenants.toml"),
            "SESSION": SESSION,
            "URL": f"http://127.0.0.1:{self.port}",
            "KEY": OPERATOR,
            "SERVER": server,
            "DATABASE": server.replace("/postgres?", "/keepwarm?"),
            "RESTORED": server.replace("/postgres?", "/restored?"),
            # Options of the unit's environment file.
            "KEEPWARM_MODEL": "random:qwen3-tiny",
            "KEEPWARM_KV_CACHE_MIB": "64",
            "KEEPWARM_PORT": str(self.port),
            "KEEPWARM_JOURNAL": str(folder / "journal.sqlite3"),
            "KEEPWARM_TENANTS_FILE": str(folder / "tenants.toml"),
        }

    def typed(self, block: str) -> str:
        """What a block prints. It ends at the first command that fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], env=self.environment, cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}\n{self.log}"
        return done.stdout

    @property
    def log(self) -> str:
        file = self.state / "log"
        return file.read_text() if file.exists() else ""

    def turn(self, session: str) -> None:
        """By a client of a tenant."""
        answer = httpx.post(
            f"http://127.0.0.1:{self.port}/v1/responses", timeout=60,
            headers={"Authorization": f"Bearer {ACME}"},
            json={"input": "Hello", "max_output_tokens": 4, "keepwarm": {"session": session}},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text

    def end(self) -> None:
        """No server is left."""
        file = self.state / "pid"
        if file.exists():
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                return


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    if PROGRAMS is None:
        pytest.skip(MISSING)
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with postgres() as server:
        made = Page(tmp_path, server)
        try:
            yield made
        finally:
            made.end()


def test_every_command_of_the_page_does_what_it_says(page: Page) -> None:
    page.typed("systemctl start keepwarm")
    for session in (SESSION, "other"):
        page.turn(session)
    said = set[str]()
    for block in BLOCKS:
        printed = page.typed(block)
        for words, pattern in SAYS.items():
            if words in block:
                assert re.search(pattern, printed, re.MULTILINE), f"{block}\n{printed}"
                said.add(words)
    assert said == set(SAYS)
    assert (page.folder / "backups/keepwarm.dump").stat().st_size > 0


def test_every_command_has_a_block_of_its_own_and_known_variables() -> None:
    lines = [line for block in BLOCKS for line in block.splitlines()]
    assert len(lines) >= 25
    known = {"JOURNAL", "DATABASE", "BACKUPS", "TENANTS", "URL", "KEY", "SESSION", "SERVER"}
    assert set(re.findall(r"\$([A-Z]+)", "\n".join(lines))) <= known | {"RESTORED"}
    programs = {line.split()[0] for line in lines}
    assert programs == {
        *("keepwarm", "systemctl", "journalctl", "curl"),
        *("createdb", "pg_dump", "pg_restore", "psql"),
    }


def test_commands_in_the_text_are_known_with_their_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mentioned = set(re.findall(r"`keepwarm ([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.S)))
    assert len(mentioned) >= 5
    for words in mentioned:
        named = [word for word in words.split() if not word.startswith("-")]
        assert main([*named, "--help"]) == 0, words
        shown = capsys.readouterr().out
        for option in re.findall(r"--[a-z-]+", words):
            assert option in shown, words


def test_every_alert_is_in_the_table_and_no_other() -> None:
    told = re.findall(r"^\| `(Keepwarm\w+)` \|", PAGE, re.MULTILINE)
    assert told == re.findall(r"- alert: (\w+)", RULES)
    rows = [line for line in PAGE.splitlines() if line.startswith("| `Keepwarm")]
    assert all(len(row.split("|")) == 5 and all(row.split("|")[1:4]) for row in rows)
