"""``keepwarm cluster balance`` says in a line what is wrong with its options, or is not there."""

import os
import sys
from pathlib import Path

import pytest

from keepwarm.commands.cluster_settings import MOST_SERVERS
from keepwarm.commands.main import main
from sessions.journal.members import MOST_SLOTS

URL = "postgresql:///none"


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name in list(os.environ):
        if name.startswith("KEEPWARM_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--journal", URL], "--cluster '' is not 1 to 64 of"),
        (["--journal", URL, "--cluster", "../x"], "--cluster '../x' is not 1 to 64 of"),
        (["--cluster", "c"], "--journal: a cluster's journal is postgresql://..."),
        (["--cluster", "c", "--journal", "x.sqlite3"], "--journal: a cluster's journal is"),
        (["--cluster", "c", "--journal", URL, "--bind", "8090"], "is not of the form HOST:PORT"),
        (["--cluster", "c", "--journal", URL, "--bind", "a:1 ssl"], "is not of the form HOST:PORT"),
        (["--cluster", "c", "--journal", URL, "--tls-certificate", "/no"], "/no: no such file"),
        (["--cluster", "c", "--journal", URL, "--haproxy", "/no"], "/no: there is no such program"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "balance", *words]) in (1, 2)
    told = capsys.readouterr().err
    assert complaint in told
    assert len(told.strip().splitlines()) == 1


def test_without_psycopg_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in sys.modules if each.startswith("cluster.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("psycopg", "sessions.journal.only_one", "sessions.journal.postgres"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "sessions.journal.only_one")
    monkeypatch.delitem(sys.modules, "sessions.journal.postgres")
    assert main(["cluster", "balance", "--journal", URL, "--cluster", "c"]) == 1
    assert "pip install 'keepwarm[postgres]'" in capsys.readouterr().err


UP = ["up", "--journal", URL, "--cluster", "c"]


@pytest.fixture
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.up.need_ray", lambda: None)


@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([*UP, "--replicas", "0"], "--replicas 0 is not in 1..256"),
        ([*UP, "--replicas", "4", "--max-replicas", "2"], "--max-replicas is less than --replicas"),
        ([*UP, "--node-host", "8.8.8.8"], "is not of a private network"),
        ([*UP, "--", "--port", "1"], "--port is given to each server"),
        ([*UP, "--", "--thread", "1"], "No such option"),
        ([*UP, "--kv-folder", "/x"], "--disk-kv-folder is given, but --disk-kv-mib is 0"),
        (["up", "--cluster", "c"], "--journal: a cluster's journal is postgresql://..."),
        (["scale", "--cluster", "c", "0"], "0 is not in the range"),
        (["scale", "--cluster", "c", "3", "--max-replicas", "2"], "--max-replicas is less than 3"),
        (["scale", "--cluster", "c", "3"], "no cluster c was started here"),
        (["drain", "--cluster", "c", "10.0.0.1:80"], "no cluster c was started here"),
        (["reload", "--cluster", "c"], "no cluster c was started here"),
        (["down", "--cluster", "../c"], "--cluster '../c' is not 1 to 64 of"),
        (["status", "--cluster", "c"], "--journal: a cluster's journal is postgresql://..."),
        (["status", "--cluster", "c", "--journal", "postgresql:///?host=/no"], "PostgreSQL: "),
    ],
)
def test_what_the_others_cannot_do_is_said_in_a_line(
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["cluster", *words]) in (1, 2)
    told = capsys.readouterr().err
    assert complaint in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [UP, ["reload", "--cluster", "c"]])
def test_without_ray_the_extra_is_named(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["cluster", *words]) == 1
    assert "pip install 'keepwarm[cluster]'" in capsys.readouterr().err


def test_a_cluster_has_as_many_servers_as_its_balancer_has_slots() -> None:
    assert MOST_SERVERS == MOST_SLOTS
