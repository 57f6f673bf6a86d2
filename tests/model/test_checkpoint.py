"""A folder's weights: found by name in any shard, checked against the shape asked for."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.model.checkpoint import INDEX_NAME, SINGLE_NAME, Checkpoint
from runtime.model.config import LoadError

CPU = torch.device("cpu")


def sharded(folder: Path) -> Path:
    save_file({"a": torch.ones(2, 3)}, folder / "one.safetensors")
    save_file({"b": torch.arange(4)}, folder / "two.safetensors")
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_tensors_come_in_the_dtype_asked_for_and_are_the_callers(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3)}, tmp_path / SINGLE_NAME)
    source = Checkpoint(tmp_path, torch.float64, CPU)
    first = source.tensor("a", (2, 3))
    first += 1
    assert torch.equal(source.tensor("a", (2, 3)), torch.ones(2, 3, dtype=torch.float64))


def test_what_is_asked_for_must_be_there_and_fit(tmp_path: Path) -> None:
    source = Checkpoint(sharded(tmp_path), torch.float32, CPU)
    assert "a" in source
    with pytest.raises(LoadError, match="'c' is in none of the shards"):
        source.tensor("c", (1,))
    with pytest.raises(LoadError, match=r"'a' has shape \[2, 3\], config.json asks for \[3, 2\]"):
        source.tensor("a", (3, 2))
    with pytest.raises(LoadError, match="not a float type"):
        source.tensor("b", (4,))


def test_tables_of_whole_numbers_are_known_by_their_name(tmp_path: Path) -> None:
    table = torch.tensor([[3, 383], [0, 256]])
    save_file({"gate.tid2eid": table, "gate.weight": table.clone()}, tmp_path / SINGLE_NAME)
    source = Checkpoint(tmp_path, torch.bfloat16, CPU)
    assert torch.equal(source.tensor("gate.tid2eid", (2, 2), wide=True), table.float())
    with pytest.raises(LoadError, match=r"'gate.weight' is int64, not a float type"):
        source.tensor("gate.weight", (2, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e6])
def test_weights_that_are_no_numbers_in_the_dtype_asked_for_are_refused(
    value: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    weights = torch.ones(50, 3)
    weights[17, 1] = value
    save_file({"a": torch.ones(2), "b": weights}, tmp_path / SINGLE_NAME)
    source = Checkpoint(tmp_path, dtype, CPU)
    source.tensor("a", (2,))
    if value == 1e6 and dtype != torch.float16:
        source.tensor("b", (50, 3))
        return
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(LoadError, match=rf"{SINGLE_NAME}: tensor 'b' is not finite in {kind}"):
        source.tensor("b", (50, 3))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map is not an object"),
        ({"weight_map": {}}, "weight_map is not an object"),
        ({"weight_map": {"a": 3}}, "is 3, not a file name"),
        ({"weight_map": {"a": "/etc/passwd"}}, "not a file name"),
        ({"weight_map": {"a": ".."}}, "not a file name"),
        ({"weight_map": {"z": "one.safetensors"}}, "'z' is not there"),
    ],
)
def test_an_index_that_lies_is_refused(index: object, message: str, tmp_path: Path) -> None:
    (sharded(tmp_path) / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(LoadError, match=message):
        Checkpoint(tmp_path, torch.float32, CPU)


def refusal(folder: Path) -> str:
    with pytest.raises(LoadError) as refused:
        Checkpoint(folder, torch.float32, CPU)
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(str(folder)).lstrip("/")


def test_a_folder_that_was_fetched_in_part_says_what_is_lacking(tmp_path: Path) -> None:
    (sharded(tmp_path) / "two.safetensors").unlink()
    said = f"two.safetensors: not there, and {INDEX_NAME} names it; of 2 shards 1 are there"
    assert refusal(tmp_path).startswith(said)


def test_shards_may_be_links_and_one_that_leads_nowhere_is_told_as_that(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name in ("one", "two"):
        shard = sharded(tmp_path) / f"{name}.safetensors"
        shard.rename(blobs / name)
        shard.symlink_to(Path("blobs") / name)
    assert "a" in Checkpoint(tmp_path, torch.float32, CPU)
    (blobs / "two").unlink()
    assert refusal(tmp_path) == "two.safetensors: a link to blobs/two, which is not there"


def test_a_pointer_of_git_lfs_is_told_as_that(tmp_path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4967215360\n"
    (tmp_path / SINGLE_NAME).write_text(text)
    assert refusal(tmp_path).startswith(f"{SINGLE_NAME}: a pointer of Git LFS, not the weights")


def test_pickled_weights_are_named_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"\x80")
    said = refusal(tmp_path)
    assert said.endswith(
        "pytorch_model-00001-of-00002.bin is no safetensors: pickled weights are not read"
    )


def test_a_tensor_that_two_shards_have_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"b": torch.arange(4), "a": torch.ones(2, 3)}, tmp_path / "two.safetensors")
    with pytest.raises(LoadError, match=r"two.safetensors: tensor 'a' is there, and in one.safet"):
        Checkpoint(tmp_path, torch.float32, CPU)


def test_a_whole_file_beside_shards_of_other_weights_is_refused(tmp_path: Path) -> None:
    """A merged model, saved into the folder of the old one."""
    folder = sharded(tmp_path)
    save_file({"a": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(LoadError, match=r"model.safetensors is there, and is no shard"):
        Checkpoint(folder, torch.float32, CPU)
    index = {"weight_map": {"a": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert list(Checkpoint(folder, torch.float32, CPU).names()) == ["a"]


def test_an_index_that_names_a_tensor_twice_is_refused(tmp_path: Path) -> None:
    twice = '{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}'
    (sharded(tmp_path) / INDEX_NAME).write_text(twice)
    with pytest.raises(LoadError, match=f"{INDEX_NAME}: not JSON .a name appears twice"):
        Checkpoint(tmp_path, torch.float32, CPU)


def test_numbers_in_8_bits_without_a_description_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3).to(torch.float8_e4m3fn)}, tmp_path / SINGLE_NAME)
    source = Checkpoint(tmp_path, torch.float32, CPU)
    with pytest.raises(LoadError, match="'a' is float8_e4m3fn, not a float type of 16 bits"):
        source.tensor("a", (2, 3))
