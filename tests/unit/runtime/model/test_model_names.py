"""What commands do with a model that is named by its hub (`sessions.command.hub`)."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.model.config import LoadError
from runtime.model.hub_models import HubName, HubRecords
from sessions.command import hub
from sessions.command.options import ServeOptions, read_serve_options
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import OptionError, resolve

COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def options(model: str) -> ServeOptions:
    values = resolve("serve", SERVE_SETTINGS, typed={"model": model}, environment={})
    return read_serve_options(values, {})


@pytest.mark.parametrize("model", ["default", "random:qwen3-tiny", "./folder"])
def test_other_models_are_left_as_they_are(model: str) -> None:
    assert hub.with_model_here(options(model), print) == options(model)


def test_a_model_that_is_here_is_named_by_its_commit(place: Path) -> None:
    HubRecords().keep(HubName.parse("a/b"), COMMIT, place, {})
    given = options("hub:a/b")
    served = hub.with_model_here(given, print)
    assert served == replace(given, engine=replace(given.engine, model=f"hub:a/b@{COMMIT}"))


def test_a_name_that_is_none_is_told_as_the_option_it_was_given_as() -> None:
    with pytest.raises(OptionError, match=r"--model 'hub:a' is no model of a hub"):
        hub.with_model_here(options("hub:a"), print)


def test_what_the_fetching_says_is_a_fault_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.model import hub_download

    def fail(*_: object, **__: object) -> None:
        raise LoadError("hub:a/b@main: gone")

    monkeypatch.setattr(hub_download, "fetch", fail)
    with pytest.raises(OptionError, match="gone"):
        hub.fetch("a/b", (), print)


def test_without_the_extra_what_to_install_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "runtime.model.hub_download", raising=False)
    monkeypatch.delattr("runtime.model.hub_download", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OptionError, match=r"pip install 'keepwarm\[hub\]'"):
        hub.fetch("a/b", (), print)
