"""The commands as they are typed: help, failures in one line, where values come from."""

import asyncio
import errno
import io
import os
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from keepwarm.commands import config, demo, doctor, keys, pull, serve
from keepwarm.commands.chat_settings import CHAT_SETTINGS
from keepwarm.commands.cluster_settings import CLUSTER_SETTINGS
from keepwarm.commands.main import COMMANDS, Commands, main
from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import SETTINGS, values_of
from runtime.model.hub_models import FetchedModel, HubName
from sessions.command.settings import OptionError, Setting
from sessions.tenants import ApiKey, Principal, Role, Tenants
from sessions.tenants_file import key_row, read_tenants_file
from tests.support.architecture import ROOT


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name in list(os.environ):
        if name.startswith("KEEPWARM_"):
            monkeypatch.delenv(name)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_the_help_lists_every_command_without_loading_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = told(capsys, "--help")
    assert status == 0
    for name, what in COMMANDS.items():
        assert f"  {name} " in out
        assert what in " ".join(out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = told(capsys, name, "--help")
    assert status == 0
    assert out.startswith(f"Usage: keepwarm {name}")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["serv"], "No such command 'serv'"),
        (["serve", "--prot", "1"], "No such option '--prot'"),
        (["serve", "--port"], "'--port' requires an argument. See 'keepwarm serve --help'."),
        (["keys", "new", "--role"], "requires an argument. See 'keepwarm keys new --help'."),
        (["serve", "--journal-shared=x"], "not take a value. See 'keepwarm serve --help'."),
        (["clients"], "Choose from: codex, claude-code"),
        (["serve", "--port", "x"], "--port 'x' is not a whole number"),
        (["serve", "--config", "/nowhere/x"], "--config /nowhere/x: no such file"),
        (["serve", "stray"], "Got unexpected extra argument (stray). See 'keepwarm serve --help'."),
        (["keys", "new", "--name", "", "--tenant", "t"], "--name is empty"),
        (["config", "show", "chatt"], "'chatt' is not"),
    ],
)
def test_what_is_typed_wrongly_is_told_in_one_line_with_status_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = told(capsys, *words)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("keepwarm: error: ")
    assert complaint in line


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = told(capsys)
    assert status == 2
    assert "Commands:" in err


def completions(*words: str) -> list[str]:
    group = Commands("keepwarm")
    found = ShellComplete(group, {}, "keepwarm", "_KEEPWARM_COMPLETE").get_completions(
        list(words[:-1]), words[-1]
    )
    return [item.value for item in found]


def test_commands_options_and_choices_complete() -> None:
    assert completions("ser") == ["serve"]
    assert completions("serve", "--disk-kv") == ["--disk-kv-mib", "--disk-kv-folder"]
    assert completions("serve", "--dtype", "bf") == ["bfloat16"]


def test_config_show_says_where_each_value_comes_from_and_hides_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[serve]\nport = 81\nallow_origin = ["https://a.example"]\n')
    monkeypatch.setenv("KEEPWARM_API_KEY", "a-secret-key")
    monkeypatch.setenv("KEEPWARM_MODEL", 'C:\\m "x"')
    status, out, _ = told(capsys, "config", "show", "serve", "--config", str(path))
    assert status == 0
    assert "a-secret-key" not in out
    assert f"# configuration file: {path}" in out
    assert "port = 81  # from the file" in out
    assert "# api_key = ...  # from KEEPWARM_API_KEY" in out
    assert '# host = "127.0.0.1"  # default' in out
    assert tomllib.loads(out) == {
        "serve": {"port": 81, "allow_origin": ["https://a.example"], "model": 'C:\\m "x"'}
    }


def test_config_show_without_a_name_shows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "config", "show")
    assert "hung_after_s" in out, "tuning options, which no help names, are shown too"
    assert [line[1:-1] for line in out.splitlines() if line.startswith("[")] == list(SETTINGS)


def test_a_balance_and_a_server_read_cluster_and_journal_from_the_same_variables() -> None:
    own = {setting.variable for setting in CLUSTER_SETTINGS}
    servers = {setting.variable for setting in SETTINGS["serve"]}
    assert own & servers == {"KEEPWARM_JOURNAL", "KEEPWARM_CLUSTER"}


def test_every_option_of_every_command_has_a_variable_of_its_own() -> None:
    for command, settings in SETTINGS.items():
        for setting in settings:
            shared = command == "serve" or setting.name in ("url", "api_key", "journal", "cluster")
            prefix = "" if shared and command != "demo" else f"{command.upper()}_"
            assert setting.variable == f"KEEPWARM_{prefix}{setting.name.upper()}"


def test_a_file_for_one_command_is_checked_for_all(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[nonsense]\nx = 1\n")
    with pytest.raises(OptionError, match=r"\[nonsense\] is unknown"):
        values_of("serve", Given(typed={}, config=str(path), arguments={}))


def test_an_option_that_is_not_typed_is_not_given() -> None:
    seen: list[Given] = []
    settings = (
        Setting(name="a_text", help="h"),
        Setting(name="a_list", kind="list", help="h"),
        Setting(name="a_switch", kind="switch", help="h"),
    )

    def run(given: Given) -> int:
        seen.append(given)
        return 0

    command = settings_command("x", settings, run, help="h")
    for words in ([], ["--a-text", "", "--a-list", "1", "--a-list", "2", "--a-switch"]):
        command.main(words, standalone_mode=False)
    assert seen[0].typed == {}
    assert seen[1].typed == {"a_text": "", "a_list": ("1", "2"), "a_switch": "true"}


def test_every_command_that_has_options_is_in_the_registry() -> None:
    for command in (serve.COMMAND, demo.COMMAND):
        assert command.name in SETTINGS
    assert SETTINGS["chat"] is CHAT_SETTINGS
    for command in (config.COMMAND, keys.COMMAND, doctor.COMMAND):
        assert command.name not in SETTINGS


def test_no_command_loads_torch_to_be_listed_or_explained() -> None:
    program = (
        "import sys; from keepwarm.commands.main import COMMANDS, main\n"
        "for name in COMMANDS: main([name, '--help'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, stdout=subprocess.DEVNULL
    )
    assert result.returncode == 0


# Keys


def test_a_new_key_is_printed_once_and_its_row_lets_it_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, out, _ = told(capsys, "keys", "new", "--name", "ci", "--tenant", "acme")
    key = out.splitlines()[0].partition(": ")[2]
    file = tmp_path / "tenants.toml"
    file.write_text("".join(line + "\n" for line in out.splitlines()[1:]))
    assert key not in file.read_text()
    principal = Tenants(read_tenants_file(file).keys).authenticate(key)
    assert principal == Principal(tenant="acme", key_name="ci")


def test_a_key_can_go_straight_into_a_file_that_stays_good(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "tenants.toml"
    made = [
        told(capsys, "keys", "new", "--name", name, "--tenant", "t", "--role", "read-only",
             "--append", str(file))[1].strip()
        for name in ("a", "b")
    ]  # fmt: skip
    tenants = Tenants(read_tenants_file(file).keys)
    assert [str(tenants.authenticate(key)) for key in made] == [
        str(Principal(tenant="t", role=Role.READ_ONLY, key_name=name)) for name in ("a", "b")
    ]
    before = file.read_text()
    status, out, err = told(
        *(capsys, "keys", "new", "--name", "a", "--tenant", "t", "--append", str(file))
    )
    assert (status, out) == (1, "")
    assert f"{file}: key 3: the name 'a' stands in the file twice" in err
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]
    file.unlink()
    os.mkfifo(file)
    words = ("keys", "new", "--name", "a", "--tenant", "t", "--append", str(file))
    assert told(capsys, *words)[::2] == (1, f"keepwarm: error: {file}: not a regular file\n")


def test_a_row_changes_neither_who_may_read_a_file_nor_what_a_link_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, link = tmp_path / "tenants.toml", tmp_path / "link.toml"
    link.symlink_to(file.name)
    for number, mode in enumerate((0o640, 0o600, 0o664)):
        words = ("keys", "new", "--name", f"k{number}", "--tenant", "t", "--append", str(link))
        assert told(capsys, *words)[0] == 0
        file.chmod(mode)
        words = ("keys", "new", "--name", f"m{number}", "--tenant", "t", "--append", str(link))
        assert told(capsys, *words)[0] == 0
        assert stat.S_IMODE(file.stat().st_mode) == mode
    assert link.is_symlink()
    assert len(read_tenants_file(file).keys) == 6


def test_keys_made_at_the_same_time_all_stand_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    names = [f"k{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        made = partial(keys.new, tenant="t", role="tenant", append=file)
        assert set(pool.map(made, names)) == {0}
    found = {key.principal.key_name for key in read_tenants_file(file).keys}
    assert found == set(names)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_no_row_can_be_put_into_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    for file in (tmp_path, tmp_path / "binary", tmp_path / "nowhere" / "file"):
        words = ("keys", "new", "--name", "a", "--tenant", "t", "--append", str(file))
        status, out, err = told(capsys, *words)
        assert (status, out) == (1, "")
        (line,) = err.splitlines()
        assert line.startswith(f"keepwarm: error: {file}: ")


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_may_be_asked_for_in_short(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["serve"], ["keys"], ["keys", "new"]):
        status, out, err = told(capsys, *words, word)
        assert status == 0, err
        assert out.startswith("Usage: keepwarm")
    assert told(capsys, "-V")[1] == told(capsys, "--version")[1]


@pytest.mark.parametrize("command", [serve.COMMAND, demo.COMMAND, doctor.COMMAND])
def test_a_command_that_was_used_by_itself_still_has_its_help_in_short(
    command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.name is not None
    command.make_context(command.name, [])  # as `cluster up` reads the words for its servers
    assert told(capsys, command.name, "-h")[0] == 0


def test_a_failure_of_the_system_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x")

    monkeypatch.setattr("keepwarm.commands.config.read_config", full)
    status, out, err = told(capsys, "config", "show")
    assert (status, out, err) == (1, "", "keepwarm: error: No space left on device: /x\n")


def test_the_row_of_a_key_that_exists_is_made_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a-good-old-key\n"))
    status, out, _ = told(capsys, "keys", "hash", "--name", "n", "--tenant", "t")
    assert (status, out) == (0, key_row(ApiKey.of("a-good-old-key", tenant="t", name="n")))
    monkeypatch.setattr("sys.stdin", io.StringIO("short"))
    assert told(capsys, "keys", "hash", "--name", "n", "--tenant", "t")[0] == 2


def test_a_file_is_said_to_hold_its_keys_without_showing_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(key_row(ApiKey.of("key-of-ops", tenant="ops", role=Role.OPERATOR)))
    _, out, _ = told(capsys, "keys", "check", str(file))
    assert "tenant ops, operator" in out
    assert "key-of-ops" not in out
    status, _, err = told(capsys, "keys", "check", str(tmp_path / "absent"))
    assert (status, "No such file" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "127.0.0.1:8080"], "--url '127.0.0.1:8080' is not of the form http://host:port"),
        (["--url", "http://h:x"], "--url 'http://h:x' is not of the form http://host:port"),
        (["--url", "http://127.0.0.1:1"], "does a server ('keepwarm serve') run at this address?"),
        (["--limit-seconds", "0"], "--limit-seconds 0.0 is not in 1..86400"),
    ],
)
def test_a_demo_elsewhere_is_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = told(capsys, "demo", *words)
    assert status in (1, 2)
    (line,) = err.splitlines()
    assert said in line


def test_a_demo_that_takes_too_long_is_ended_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("keepwarm.demo.play.play", never)
    words = ("--url", "http://127.0.0.1:1", "--limit-seconds", "1")
    status, _, err = told(capsys, "demo", *words)
    assert (status, err) == (
        *(1, "keepwarm: error: the demo took longer than 1 s; --limit-seconds gives it more\n"),
    )


STOPPED = """
import asyncio, contextlib, os, signal, sys
from keepwarm.commands.main import main
from keepwarm.demo import play
from keepwarm.demo.child_server import ChildServer

@contextlib.contextmanager
def child_server(*_, **__):
    try:
        yield ChildServer(url="http://127.0.0.1:1/v1", ready_line="ready", process=None)
    finally:
        print("its server has ended")

async def stopped(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(30)

play.child_server, play.play = child_server, stopped
sys.exit(main(["demo"]))
"""


@pytest.mark.parametrize("ignored", [False, True], ids=["alone", "behind a shell's &"])
def test_a_demo_that_is_told_to_stop_leaves_no_server_behind(*, ignored: bool) -> None:
    how = "SIG_IGN" if ignored else "default_int_handler"
    program = f"import signal\nsignal.signal(signal.SIGINT, signal.{how})\n{STOPPED}"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "")
    assert "its server has ended" in ended.stdout


def test_a_demo_without_its_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = told(capsys, "demo", "--model", "/nowhere/model")
    assert status == 1
    (line,) = err.splitlines()
    assert line == (
        "keepwarm: error: --model /nowhere/model: no such folder; models are folders, default, "
        "random:NAME or hub:ORG/NAME"
    )


def test_pull_prints_the_commit_and_the_folder_for_programs_and_the_rest_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = HubName.parse("a/b@" + "c" * 40)

    def fetched(name: str, only: tuple[str, ...], tell: Callable[[str], None]) -> FetchedModel:
        tell(f"fetching {name} {only}")
        return FetchedModel(name=pinned, folder=Path("/there"))

    monkeypatch.setattr(pull, "fetch", fetched)
    status, out, err = told(capsys, "pull", "a/b", "--file", "x.gguf", "--file", "y.gguf")
    assert (status, out) == (0, f"{pinned} /there\n")
    assert err == "fetching a/b ('x.gguf', 'y.gguf')\n"
    assert told(capsys, "pull")[0] == 2
