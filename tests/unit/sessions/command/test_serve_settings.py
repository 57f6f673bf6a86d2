"""Settings of a server: those that people set are in the help, and none has another one's name."""

import subprocess
import sys
from dataclasses import fields

import pytest

from keepwarm.commands.parameters import settings_command
from runtime.config import EngineConfig
from sessions.command.serve_settings import SERVE_SETTINGS, TUNING
from tests.support.architecture import ROOT
from tests.unit.sessions.command.test_options import parsed


def test_engine_settings_that_are_not_for_tuning_stand_in_the_help_with_their_docstrings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings_command("serve", SERVE_SETTINGS, parsed, help="").main(
        ["--help"], standalone_mode=False
    )
    shown = " ".join(capsys.readouterr().out.split())
    for field in fields(EngineConfig):
        name = field.name.replace("_bytes", "_mib").replace("_", "-")
        name = "adapter" if name == "adapters" else name
        assert (f"--{name} " in shown) == (field.name not in TUNING)
    assert {field.name for field in fields(EngineConfig)} > TUNING
    assert "Turns that may decode at the same time. Default: 256." in shown
    assert "``" not in shown
    assert "_bytes'" not in shown
    assert "Needs 'host_kv_mib' and a folder" in shown
    assert "--threads N " in shown
    assert "--max-context-tokens TOKENS " in shown
    assert "; Default" not in shown


def test_no_two_settings_have_one_name_or_variable() -> None:
    assert len({setting.name for setting in SERVE_SETTINGS}) == len(SERVE_SETTINGS)
    assert len({setting.variable for setting in SERVE_SETTINGS}) == len(SERVE_SETTINGS)


def test_they_are_read_without_what_a_server_needs() -> None:
    blocked = ["torch", "numpy", "xxhash", "tokenizers", "h11", "llguidance", "prometheus_client"]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import sessions.command.serve_settings"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
