"""A model is fetched whole and checked, or not at all, whatever the hub does."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import constants

from runtime.model import hub_download
from runtime.model.config import LoadError
from runtime.model.hub_models import HubName, HubRecords
from tests.support.fake_hub import COMMIT, FakeHub, running

NAME = HubName.parse("somebody/small")
WEIGHTS = bytes(range(256)) * 2000
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b"{}",
    "tokenizer.model": b"pieces",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "model.safetensors.index.json": b'{"weight_map": {}}',
}
UNWANTED = {
    "pytorch_model.bin": b"a pickle",
    "tokenizer.pkl": b"a pickle",
    "tokenizer.py": b"raise SystemExit",
    "modeling_small.py": b"raise SystemExit",
    "README.md": b"# small",
    "consolidated.safetensors": b"the same again",
    "original/model.safetensors": b"the same once more",
    "model-of-before/model.safetensors": b"another one",
    "onnx/config.json": b"{}",
    ".gitattributes": b"",
}


class Place(NamedTuple):
    hub: FakeHub
    records: HubRecords

    def fetch(self, *only: str, name: HubName = NAME) -> Path:
        return hub_download.fetch(name, only=only, records=self.records).folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s" * 34)
    with running(FakeHub(FILES | UNWANTED)) as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        yield Place(hub, HubRecords(tmp_path / "records"))


def fault(place: Place, *only: str, name: HubName = NAME) -> str:
    with pytest.raises(LoadError) as raised:
        place.fetch(*only, name=name)
    message = str(raised.value)
    assert "\n" not in message
    assert "hf_sss" not in message
    assert place.records.find(name) is None
    return message


def test_what_a_server_reads_is_fetched_and_nothing_that_runs_code(place: Place) -> None:
    folder = place.fetch()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert sorted(set(place.hub.contents())) == sorted(FILES)
    found = place.records.find(NAME)
    assert found is not None
    assert (found.folder, str(found.name)) == (folder, f"hub:somebody/small@{COMMIT}")


def test_what_is_here_is_not_fetched_again(place: Place) -> None:
    place.fetch()
    asked = place.hub.contents()
    place.fetch()
    assert place.hub.contents() == asked


def test_a_connection_that_is_cut_goes_on_where_it_ended(place: Place) -> None:
    place.hub.cut_once["model-00001-of-00002.safetensors"] = len(WEIGHTS) // 3
    folder = place.fetch()
    assert (folder / "model-00001-of-00002.safetensors").read_bytes() == WEIGHTS
    assert place.hub.contents().count("model-00001-of-00002.safetensors") == 2


def test_behind_a_failure_only_files_that_are_missing_are_fetched(place: Place) -> None:
    bad = "model-00002-of-00002.safetensors"
    place.hub.lies[bad] = FILES[bad][1:] + b"."
    assert "differs from what the hub says" in fault(place)
    place.hub.lies.clear()
    place.fetch()
    assert sorted(place.hub.contents()) == sorted([*FILES, bad])


@pytest.mark.parametrize("file", ["model-00001-of-00002.safetensors", "config.json"])
def test_a_file_that_differs_is_thrown_away(place: Place, file: str) -> None:
    true = FILES[file]
    place.hub.lies[file] = true[:-1] + bytes([true[-1] ^ 1])
    assert f"{file} differs" in fault(place)
    assert not list(Path(constants.HF_HUB_CACHE).rglob(file))


@pytest.mark.parametrize("file", ["model-00001-of-00002.safetensors", "config.json"])
def test_a_file_of_another_size_is_thrown_away(place: Place, file: str) -> None:
    place.hub.sizes[file] = len(FILES[file]) + 1
    assert f"{file} has {len(FILES[file])} bytes of" in fault(place)
    assert not list(Path(constants.HF_HUB_CACHE).rglob(file))


@pytest.mark.parametrize(
    "file", ["../config.json", "/etc/model.safetensors", "a/../../b.json", "a\\b.json", "a//b.json"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(place: Place, file: str) -> None:
    place.hub.files[file] = b"{}"
    assert "leads out of the model's folder" in fault(place)
    assert not place.hub.contents()


def test_of_several_files_in_gguf_one_has_to_be_named(place: Place) -> None:
    for file in [*place.hub.files]:
        if "safetensors" in file:
            del place.hub.files[file]
    place.hub.files |= {"small-Q4_0.gguf": b"four", "small-Q8_0.gguf": b"eight"}
    message = fault(place)
    assert "--file" in message
    assert "small-Q4_0.gguf, small-Q8_0.gguf" in message
    folder = place.fetch("small-Q8_0.gguf")
    assert [path.name for path in folder.glob("*.gguf")] == ["small-Q8_0.gguf"]


def test_a_model_without_weights_that_are_read_here_is_refused(place: Place) -> None:
    place.hub.files = {"config.json": b"{}", "pytorch_model.bin": b"a pickle"}
    assert "no weights in safetensors or GGUF" in fault(place)


def test_what_does_not_fit_on_the_disk_is_not_begun(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=hub_download.SPARE_BYTES + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "make room" in fault(place)
    assert not place.hub.contents()


def test_offline_a_model_is_here_or_named_as_missing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in fault(place)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = place.fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = list(place.hub.asked)
    assert place.fetch() == folder
    assert place.hub.asked == asked


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("somebody/other", "no such model"),
        ("somebody/small@elsewhere", "no such revision"),
    ],
)
def test_what_the_hub_does_not_have_is_named(place: Place, name: str, told: str) -> None:
    assert told in fault(place, name=HubName.parse(name))


def test_a_hub_that_fails_or_is_gone_is_told_in_a_line(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hub.status = 418
    assert "the hub answered 418" in fault(place)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in fault(place)


def test_a_hub_that_names_no_commit_is_refused(place: Place) -> None:
    place.hub.revisions["main"] = "../../../elsewhere"
    assert "names no commit" in fault(place)


def test_the_token_goes_to_the_hub_and_nowhere_else(
    place: Place, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    hub_download.fetch(NAME, records=place.records, tell=told.append)
    assert place.hub.tokens == {"hf_" + "s" * 34}
    shown = capsys.readouterr()
    assert told
    assert "hf_sss" not in "".join(told) + caplog.text + shown.out + shown.err


def test_an_error_that_has_the_token_in_it_is_told_without(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(f"no route for Bearer {'hf_' + 's' * 34}")

    monkeypatch.setattr(hub_download.HfApi, "model_info", fail)
    assert fault(place).endswith("no route for Bearer ***")
