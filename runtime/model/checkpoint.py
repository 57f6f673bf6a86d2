"""A Hugging Face folder's weights, in one safetensors file or sharded.

``model.safetensors.index.json`` names the shard of each tensor; without it there is one
``model.safetensors``. Both at once are two models, unless one names the other. Nothing else in the
folder is read: no pickled weights, no code.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from kernels.codes import Codes
from runtime.model.config import LoadError
from runtime.model.config_fields import read_json_object
from runtime.model.contents import Extent
from runtime.model.safetensors_file import SafetensorsFile

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = (torch.int32, torch.int64)
_TABLES = (".tid2eid",)
"""How names of tensors of whole numbers end; they are handed out as floats, which small ones are
without loss."""


class Checkpoint:
    """A ``WeightSource`` over a folder. Every shard's header is checked on opening."""

    def __init__(
        self, folder: Path, dtype: torch.dtype, device: torch.device, *, progress: bool = False
    ) -> None:
        """Open the folder's shards; ``progress`` shows a bar on stderr while loading.

        Raises:
            LoadError: no weights, a shard is missing or damaged, or the index is wrong.
        """
        self.folder = folder
        self._dtype = dtype
        self._device = device
        self._files = _open_files(folder)
        self._seen: set[str] = set()
        self._bar = tqdm(
            total=len(self._files), desc="loading", unit="tensor", disable=not progress, leave=False
        )

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def names(self) -> Sequence[str]:
        """Names of all tensors of the checkpoint."""
        return list(self._files)

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        wide: bool = False,
        part: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """See ``WeightSource.tensor``; ``part`` takes what is wanted from the whole."""
        file = self._files.get(name)
        if file is None:
            raise LoadError(f"{self.folder}: tensor {name!r} is in none of the shards")
        if file.shape(name) != shape:
            raise LoadError(
                f"{file.path}: tensor {name!r} has shape {list(file.shape(name))}, "
                f"config.json asks for {list(shape)}"
            )
        values = file.tensor(name)
        is_table = name.endswith(_TABLES) and values.dtype in _WHOLE
        if values.dtype not in _FLOATS and not is_table:
            kind = str(values.dtype).removeprefix("torch.")
            raise LoadError(
                f"{file.path}: tensor {name!r} is {kind}, not a float type of 16 bits or more, and "
                "quantization_config in config.json does not say what it stands for"
            )
        self._bar.update()
        dtype = torch.promote_types(self._dtype, torch.float32) if wide else self._dtype
        wanted = values if part is None else part(values)
        loaded = wanted.to(self._device, dtype, copy=True).contiguous()
        # One number that is not finite makes the sum so; no sum of real weights overflows.
        total = loaded.sum(dtype=torch.promote_types(dtype, torch.float32))
        if not math.isfinite(total.item()):
            kind = str(dtype).removeprefix("torch.")
            raise LoadError(f"{file.path}: tensor {name!r} is not finite in {kind}")
        return loaded

    def stored(self, name: str) -> Tensor:
        """See ``quantised_tensors.StoredTensors``."""
        file = self._files.get(name)
        if file is None:
            raise LoadError(f"{self.folder}: tensor {name!r} is in none of the shards")
        if name not in self._seen:
            self._seen.add(name)
            self._bar.update()
        return file.tensor(name)

    def as_own(self, matrix: Tensor | Codes) -> Tensor | Codes:
        """See ``family_weights.NamedTensors``."""
        if isinstance(matrix, Tensor):
            return matrix.to(self._device, self._dtype, copy=True).contiguous()
        return matrix.to(self._device)

    def place(self, name: str) -> Path:
        """See ``quantised_tensors.StoredTensors``."""
        return self._files[name].path

    def extent(self, name: str) -> Extent:
        """How a tensor is kept, as its file's header says."""
        file = self._files[name]
        dtype, shape = file.dtype(name), file.shape(name)
        return Extent(
            kind=str(dtype).removeprefix("torch."),
            floats=dtype in _FLOATS,
            numbers=math.prod(shape),
            num_bytes=file.num_bytes(name),
        )

    def close(self) -> None:
        """Let go of the mapped files and end the progress bar."""
        self._files = {}
        self._bar.close()


def _open_files(folder: Path) -> dict[str, SafetensorsFile]:
    if not (folder / INDEX_NAME).exists():
        if not (folder / SINGLE_NAME).exists():
            raise LoadError(
                f"{folder}: neither {SINGLE_NAME} nor {INDEX_NAME} is there{_pickled(folder)}"
            )
        single = SafetensorsFile(folder / SINGLE_NAME)
        return dict.fromkeys(single.names(), single)
    index = folder / INDEX_NAME
    weight_map = read_json_object(index, unique=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LoadError(f"{index}: field weight_map is not an object of names")
    if SINGLE_NAME not in weight_map.values() and (folder / SINGLE_NAME).exists():
        raise LoadError(
            f"{folder}: {SINGLE_NAME} is there, and is no shard that {INDEX_NAME} names: one of "
            "them is of other weights; take it away"
        )
    shards: dict[str, SafetensorsFile] = {}
    files = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            raise LoadError(f"{index}: weight_map[{name!r}] is {shard!r}, not a file name")
        if shard not in shards:
            if _is_gone(folder / shard):
                raise _absent(folder / shard, set(weight_map.values()), index)
            shards[shard] = SafetensorsFile(folder / shard)
        if name not in shards[shard]:
            raise LoadError(f"{folder / shard}: tensor {name!r} is not there, {index.name} says so")
        files[name] = shards[shard]
    for shard, file in shards.items():
        twice = next((name for name in file.names() if files.get(name, file) is not file), None)
        if twice is not None:
            raise LoadError(
                f"{folder / shard}: tensor {twice!r} is there, and in {files[twice].path.name} too"
            )
    return files


def _pickled(folder: Path) -> str:
    """What to say where weights are there in a form that is not read."""
    found = next((path.name for kind in _PICKLED for path in sorted(folder.glob(kind))), None)
    return "" if found is None else f"; {found} is no safetensors: pickled weights are not read"


def _is_gone(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False  # whoever opens it says why it cannot
    return False


def _absent(path: Path, shards: set[object], index: Path) -> LoadError:
    """A shard that the index names and that cannot be found."""
    if path.is_symlink():
        return LoadError(f"{path}: a link to {path.readlink()}, which is not there")
    there = sum(isinstance(each, str) and not _is_gone(index.parent / each) for each in shards)
    return LoadError(
        f"{path}: not there, and {index.name} names it; of {len(shards)} shards {there} are there: "
        "fetch the others"
    )
