"""Options of serve behind another command's own are checked before a server has them."""

from pathlib import Path

import click
import pytest

from keepwarm.commands.serve_words import SPARE_S, facts_of, forwarded, read_words
from sessions.command.settings import OptionError
from sessions.tenants import ApiKey
from sessions.tenants_file import key_row

GIVEN = ("c", "postgresql://db/k", "127.0.0.1")


@pytest.mark.parametrize("flag", ["--port", "--journal", "--cluster", "--advertise", "--host"])
def test_what_each_server_is_given_cannot_be_given_to_all(flag: str) -> None:
    for words in ([flag, "1"], [f"{flag}=1"]):
        with pytest.raises(OptionError, match=f"{flag} is given to each server"):
            read_words(["--threads", "1", *words])
    assert read_words(["--threads", "1"]) == ("--threads", "1")


def test_the_time_to_end_is_drain_and_notice_and_some_more() -> None:
    words = ["--drain-seconds", "7", "--drain-notice-s", "3"]
    assert facts_of(words, *GIVEN, None).drain_s == 7 + 3 + SPARE_S
    assert facts_of([], *GIVEN, None).drain_s == 30 + 2 + SPARE_S


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--thread", "1"], "No such option"),
        (["--threads", "x"], "--threads 'x'"),
        (["stray"], "unexpected extra argument"),
    ],
)
def test_options_that_a_server_refuses_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises((OptionError, click.UsageError), match=complaint):
        facts_of(words, *GIVEN, None)


def test_a_folder_of_kv_needs_its_sizes(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--disk-kv-folder is given, but --disk-kv-mib is 0"):
        facts_of([], *GIVEN, tmp_path)
    facts_of(["--host-kv-mib", "64", "--disk-kv-mib", "64"], *GIVEN, tmp_path)


def test_servers_elsewhere_get_the_variables_of_serve_and_no_others() -> None:
    told = {"KEEPWARM_THREADS": "1", "KEEPWARM_DEMO_SESSIONS": "4", "PATH": "/bin", "HOME": "/"}
    told |= {"KEEPWARM_CONFIG": "", "KEEPWARM_NATIVE": "0"}
    assert forwarded(told) == {
        "KEEPWARM_THREADS": "1",
        "KEEPWARM_CONFIG": "",
        "KEEPWARM_NATIVE": "0",
    }


def test_only_who_has_a_tenants_file_is_told_to_read_it_again(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(key_row(ApiKey.of("a-key-of-acme", tenant="acme")))
    assert facts_of(["--tenants-file", str(file)], *GIVEN, None).reloads
    assert not facts_of([], *GIVEN, None).reloads
