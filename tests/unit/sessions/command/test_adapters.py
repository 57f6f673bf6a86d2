"""Adapters that cannot be served are refused in a line, before an engine starts."""

from pathlib import Path

import pytest

from runtime.config import AdapterSource, EngineConfig
from sessions.command.adapters import (
    fault_of_adapters,
    fault_of_folder,
    findings,
    told_apart,
)
from sessions.command.beforehand import identity_of, place
from sessions.command.settings import OptionError
from tests.unit.sessions.command.test_beforehand import options as prepared_options
from tests.unit.sessions.command.test_options import options


def adapter(folder: Path, *, config: str = "{}", weights: bytes = b"w") -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(config)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(folder)


def given(*words: str, **environment: str) -> EngineConfig:
    typed = [part for word in words for part in ("--adapter", word)]
    return options(*typed, **environment).engine


def test_they_are_given_by_name_and_folder_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    assert given("sql=/a/b=c", " law = ~/law ").adapters == (
        AdapterSource(name="sql", folder="/a/b=c"),
        AdapterSource(name="law", folder="/home/x/law"),
    )
    assert given(KEEPWARM_ADAPTER="sql=/a, law=rel/b").adapters == (
        AdapterSource(name="sql", folder="/a"),
        AdapterSource(name="law", folder="rel/b"),
    )
    assert given().adapters == ()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["sql"], "--adapter: sql has no folder: give NAME=FOLDER"),
        (["sql="], "--adapter: sql has no folder"),
        (["=/a"], "--adapter: '' is no name of an adapter"),
        (["a b=/a"], "--adapter: 'a b' is no name of an adapter: give 1 to 128 letters"),
        (["a=/a", "b=/b", "a=/c"], "--adapter: a is given twice: name each once"),
        ([f"a{n}=/a" for n in range(257)], "--adapter are 257, at most 256 can be"),
    ],
)
def test_a_faulty_one_is_told_by_the_options_name(words: list[str], complaint: str) -> None:
    with pytest.raises(OptionError) as caught:
        given(*words)
    assert str(caught.value).startswith(complaint)


def test_the_place_where_it_was_given_is_told() -> None:
    with pytest.raises(OptionError, match=r"^KEEPWARM_ADAPTER: sql has no folder"):
        given(KEEPWARM_ADAPTER="sql")


def test_a_name_of_the_model_and_a_folder_that_is_not_there_keep_the_server_from_starting(
    tmp_path: Path,
) -> None:
    folder = adapter(tmp_path / "a")
    with place(prepared_options(adapter=(f"sql={folder}",))):
        pass
    for name in ("default", "m"):
        with pytest.raises(OptionError, match=f"{name} is a name of the model itself: give"):
            place(prepared_options(adapter=(f"{name}={folder}",), model_name="m"))
    with pytest.raises(OptionError, match=r"--adapter sql=.*nowhere: there is no such folder"):
        place(prepared_options(adapter=(f"sql={tmp_path / 'nowhere'}",)))


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    whole = Path(adapter(tmp_path / "a"))
    assert fault_of_folder(str(whole)) is None
    assert fault_of_folder(str(whole / "adapter_config.json")) == "it is a file, not a folder"
    assert "not fetched by a hub's name" in str(fault_of_folder("hub:org/adapter"))
    (whole / "adapter_model.safetensors").rename(whole / "adapter_model.bin")
    found = fault_of_folder(str(whole))
    assert found is not None
    assert "adapter_model.safetensors not there; pickled weights are not read" in found
    (tmp_path / "empty").mkdir()
    assert "adapter_config.json and adapter_model" in str(fault_of_folder(str(tmp_path / "empty")))


def test_the_second_of_two_is_looked_at_as_well(tmp_path: Path) -> None:
    both = [
        AdapterSource(name="a", folder=adapter(tmp_path / "a")),
        AdapterSource(name="b", folder=str(tmp_path / "b")),
    ]
    assert str(fault_of_adapters(both, frozenset())).startswith("--adapter b=")


def test_servers_are_told_apart_by_the_names_and_contents_of_their_adapters(
    tmp_path: Path,
) -> None:
    one, copy = adapter(tmp_path / "one"), adapter(tmp_path / "copy")
    other = adapter(tmp_path / "other", weights=b"x")
    scaled = adapter(tmp_path / "scaled", config='{"r": 4}')

    def identity(*given: str) -> str:
        return identity_of(prepared_options(adapter=given), b"\1" * 16)

    same = identity(f"a={one}", f"b={other}")
    assert same == identity(f"b={other}", f"a={copy}")
    assert same.startswith("default (010101010101) with the adapters a (")
    assert identity() == "default (010101010101)"
    different = [
        same,
        identity(),
        identity(f"a={one}"),
        identity(f"c={one}"),
        identity(f"a={other}"),
        identity(f"a={scaled}"),
    ]
    assert len(set(different)) == len(different)


def test_an_adapter_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    gone = AdapterSource(name="a", folder=str(tmp_path))
    with pytest.raises(OptionError, match=r"--adapter a=.*adapter_config.json: No such file"):
        told_apart([gone])


def test_the_doctor_tells_what_each_is_or_lacks(tmp_path: Path) -> None:
    config = '{"r": 8, "target_modules": ["v_proj", "q_proj"]}'
    whole = adapter(tmp_path / "a", config=config, weights=b"w" * (3 << 20))
    odd = adapter(tmp_path / "odd", config="{")
    given = [("a", whole), ("odd", odd), ("gone", str(tmp_path / "gone")), ("default", whole)]
    sources = [AdapterSource(name=name, folder=folder) for name, folder in given]
    told = list(findings(sources, {"default"}))
    assert [each.what for each in told] == [f"adapter {name}" for name, _ in given]
    assert [each.verdict for each in told] == ["ok", "ok", "fault", "fault"]
    assert told[0].found == f"{whole}: rank 8 on q_proj, v_proj, 3 MiB of weights"
    assert "there is no such folder" in told[2].found
    assert "is a name of the model itself" in told[3].found
    assert told[2].advice
