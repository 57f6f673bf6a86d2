"""From the name of a model to a decoder in memory.

A source is a folder in Hugging Face layout, a GGUF file, ``default``, or ``random:NAME``. Weights
are taken one tensor at a time into the form the decoder computes with, so that a model is never in
memory twice.
"""

import contextlib
import logging
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from runtime.config import AdapterSource
from runtime.heap_free import give_back_heap
from runtime.messages import AdapterInfo
from runtime.model.adapters import AdapterSet
from runtime.model.checkpoint import Checkpoint
from runtime.model.config import LoadError, ModelConfig
from runtime.model.contents import Contents, counted, held_bytes, held_of_gguf, told
from runtime.model.cut_weights import CutWeights, check_groups
from runtime.model.decoder import Decoder
from runtime.model.family_weights import FamilyWeights
from runtime.model.gguf_header import GgufHeader
from runtime.model.gguf_weights import GgufWeights
from runtime.model.hf_config import FAMILIES
from runtime.model.layers import MapLoader, PlacedWeights, WeightBits
from runtime.model.memory_plan import WIDTHS, bytes_of_part, bytes_of_weights, weight_bytes
from runtime.model.partition import Partition, part_of
from runtime.model.product_choice import ProductChoice
from runtime.model.product_timing import measured_choice
from runtime.model.random_weights import RandomWeights
from runtime.model.rank_link import RankLink
from runtime.model.sources import ModelSource, check_context, find_source

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, and where its tokenizer is."""

    name: str
    """The model's source, as it was given."""
    config: ModelConfig
    decoder: Decoder
    tokenizer_folder: Path
    """Holds ``tokenizer.json``."""
    dtype: torch.dtype
    device: torch.device
    load_s: float
    whole: ModelConfig | None = None
    """The whole model, where ``config`` and ``decoder`` are one rank's part of it."""
    ranks: RankLink | None = None
    """The other ranks, where several compute the model."""
    adapters: tuple[AdapterInfo, ...] = ()
    """By number, the first is 0."""

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model, whatever part of it is here."""
        return (self.whole or self.config).num_parameters

    @property
    def model_type(self) -> str:
        """Family; the chat format is chosen by it."""
        return self.config.model_type


def load_model(
    source: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    bits: WeightBits = 16,
    seed: int = 0,
    max_context_tokens: int | None = None,
    progress: bool = False,
    machine_folder: str | None = None,
    folder_read: Callable[[], None] = lambda: None,
    ranks: RankLink | None = None,
    adapters: Sequence[AdapterSource] = (),
) -> LoadedModel:
    """Load a model.

    Args:
        dtype: number type to compute in, whatever the checkpoint's is.
        device: where the weights go.
        bits: 8, 4 or fp8 to quantise linear maps while loading.
        seed: of the weights of random models.
        max_context_tokens: what is to be served; more than the model was made for is refused.
        progress: show a bar on stderr.
        machine_folder: keeps what is found out about the machine; None: nothing is kept.
        folder_read: called when all but weights has been read and checked.
        ranks: of a model that several compute: one's part is loaded.
        adapters: loaded with it.

    Raises:
        LoadError: one of them cannot be served; the message names file, field and remedy.
    """
    started = time.perf_counter()
    name = str(source)
    found = find_source(name, max_context_tokens=max_context_tokens)
    check_context(name, found.config, max_context_tokens)
    config = found.config if ranks is None else part_of(name, found.config, ranks.partition)
    partition = None if ranks is None else ranks.partition
    check_memory(name, config, dtype, device, bits, sharing=sharing(device, partition))
    adapted = AdapterSet(adapters, dtype, device)
    with _weights(
        found, dtype, device, bits=bits, seed=seed, progress=progress, ranks=ranks
    ) as weights:
        folder_read()
        adapted.are_of(weights)
        decoder = _decoder(
            config, weights, adapted, bits=bits, machine_folder=machine_folder, ranks=ranks
        )
    give_back_heap()
    load_s = _tell_loaded(name, found.config, dtype, started)
    return LoadedModel(
        name=name,
        config=config,
        decoder=decoder,
        tokenizer_folder=found.tokenizer_folder,
        dtype=dtype,
        device=device,
        load_s=load_s,
        whole=found.config,
        ranks=ranks,
        adapters=adapted.finish(),
    )


def _tell_loaded(name: str, config: ModelConfig, dtype: torch.dtype, started: float) -> float:
    """Seconds since ``started``, which the log is told."""
    load_s = time.perf_counter() - started
    _LOG.info(
        "model loaded name=%s parameters=%d dtype=%s load_s=%.2f peak_rss_bytes=%d",
        name,
        config.num_parameters,
        str(dtype).removeprefix("torch."),
        load_s,
        peak_rss_bytes(),
    )
    return load_s


def _decoder(
    config: ModelConfig,
    weights: PlacedWeights,
    adapters: AdapterSet,
    *,
    bits: WeightBits,
    machine_folder: str | None,
    ranks: RankLink | None,
) -> Decoder:
    """A decoder of these weights, of the dtype and on the device of its adapters; what the machine
    is best at is the leading rank's to find out."""
    dtype, device = adapters.dtype, adapters.device
    leads = ranks is None or ranks.partition.leads
    choice = _products(config, dtype, device, bits, machine_folder) if leads else None
    loader = MapLoader(
        source=weights,
        bits=bits,
        choice=choice if ranks is None else ranks.products(choice),
        dtype=dtype,
        rank_sum=None if ranks is None else ranks.rank_sum,
        adapters=adapters,
    )
    return Decoder(config, loader, device, has_head=leads)


@contextlib.contextmanager
def _weights(
    found: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    *,
    bits: WeightBits,
    seed: int,
    progress: bool,
    ranks: RankLink | None,
) -> Iterator[PlacedWeights]:
    """Where the decoder's weights come from, wherever the model is."""
    partition = None if ranks is None else ranks.partition
    if found.folder is None:
        drawn = RandomWeights(seed, dtype, device)
        yield drawn if partition is None else CutWeights(drawn, found.config, partition, bits)
        return
    with _stored_weights(found, dtype, device, progress, partition) as stored:
        yield stored if partition is None else CutWeights(stored, found.config, partition, bits)


def sharing(device: torch.device, partition: Partition | None) -> int:
    """How many ranks have the device's memory together."""
    return partition.ranks if partition is not None and device.type == "cpu" else 1


@contextlib.contextmanager
def _stored_weights(
    found: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    progress: bool,
    partition: Partition | None,
) -> Iterator[GgufWeights | FamilyWeights]:
    """The checkpoint's weights; closes it, and looks at what is left over when all are taken, where
    that is not another rank's."""
    with _stored(found, dtype, device, progress=progress) as (weights, contents):
        _check_part(found, weights, contents, dtype=dtype, device=device, partition=partition)
        yield weights
        if partition is None or partition.leads:
            others = partition is not None and partition.whole_experts
            weights.check_all_read(but="*.experts.*" if others else "")


@contextlib.contextmanager
def _stored(
    found: ModelSource, dtype: torch.dtype, device: torch.device, *, progress: bool
) -> Iterator[tuple[GgufWeights | FamilyWeights, Contents]]:
    """The checkpoint's weights, of which none has been read, and what is known of them."""
    config = found.config
    if found.gguf is not None:
        size = config.head_dim
        file = GgufWeights(found.gguf, dtype, device, head_dim=size, progress=progress)
        with contextlib.closing(file):
            yield file, _contents_of_gguf(found.gguf, dtype)
        return
    assert found.folder is not None
    stored = Checkpoint(found.folder, dtype, device, progress=progress)
    with contextlib.closing(stored):
        weights = FamilyWeights(stored, FAMILIES[config.model_type].names, config)
        yield weights, _contents_of(stored, weights, config, dtype)


def _check_part(
    found: ModelSource,
    stored: FamilyWeights | GgufWeights,
    contents: Contents,
    *,
    dtype: torch.dtype,
    device: torch.device,
    partition: Partition | None,
) -> Contents:
    """Whether a model in few bits fits, or the ranks' parts of it, and can be cut into these;
    contents with the memory of one part.

    Raises:
        LoadError: it does not, or cannot.
    """
    config, place = found.config, found.folder if found.gguf is None else found.gguf.path
    assert place is not None
    if partition is not None:
        check_groups(str(place), stored, config, partition)
        part = part_of(str(place), config, partition)
        held = bytes_of_part(contents.held_bytes, config, part, dtype.itemsize)
        contents = replace(contents, held_bytes=held)
    check_stored(config, place, contents, device, sharing=sharing(device, partition))
    return contents


def contents_of(
    found: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    bits: WeightBits,
    partition: Partition | None = None,
) -> Contents:
    """Contents of the model's files, as far as headers tell; ``partition``: the memory told of is
    one rank's.

    Raises:
        LoadError: weights are missing or cannot be cut so, a header is damaged, or a model that is
            quantised has no room on ``device``.
    """
    config = found.config
    part = config if partition is None else part_of("", config, partition)
    held = weight_bytes(part, dtype, bits)
    if found.folder is None:
        return Contents(form="drawn from a seed", held_bytes=held)
    with _stored(found, dtype, torch.device("cpu"), progress=False) as (weights, contents):
        contents = _check_part(
            found, weights, contents, dtype=dtype, device=device, partition=partition
        )
    return contents if config.quantisation is not None else replace(contents, held_bytes=held)


def _contents_of(
    stored: Checkpoint, weights: FamilyWeights, config: ModelConfig, dtype: torch.dtype
) -> Contents:
    quantisation, left, kinds, held = config.quantisation, [], [], 0
    for name in stored.names():
        pattern = weights.left_as(name)
        if pattern is not None:
            left.append(pattern)
            continue
        extent = stored.extent(name)
        kinds.append(extent.kind)
        held += held_bytes(name, extent, quantisation, dtype.itemsize)
    form = counted(kinds) if quantisation is None else told(quantisation)
    return Contents(form=f"safetensors, {form}", left=counted(left), held_bytes=held)


def _contents_of_gguf(header: GgufHeader, dtype: torch.dtype) -> Contents:
    tensors = header.tensors.values()
    return Contents(
        form=f"GGUF, {counted(each.kind for each in tensors)}",
        held_bytes=sum(
            held_of_gguf(each.kind, math.prod(each.shape), each.num_bytes, dtype.itemsize)
            for each in tensors
        ),
    )


def peak_rss_bytes() -> int:
    """Most memory this process has ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_memory_bytes(device: torch.device) -> int:
    """Memory that can be had now on ``device``, the cache of files counted as free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _products(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    bits: WeightBits,
    machine_folder: str | None,
) -> ProductChoice | None:
    if config.quantisation is not None:
        return None
    return measured_choice(
        config,
        dtype,
        device,
        bits,
        free_bytes=free_memory_bytes(device),
        clock=time.perf_counter,
        folder=machine_folder,
    )


def check_stored(
    config: ModelConfig,
    place: Path,
    contents: Contents,
    device: torch.device,
    *,
    sharing: int = 1,
) -> None:
    """Whether there is room for a quantised model, which cannot be made smaller while it is loaded;
    so many parts as are ``sharing`` the memory are loaded.

    Raises:
        LoadError: there is not.
    """
    free = free_memory_bytes(device)
    held = contents.held_bytes * sharing
    if config.quantisation is not None and held > free:
        raise LoadError(
            f"{place}: its weights take {held / (1 << 30):.1f} GiB once they are "
            f"loaded ({contents.form}), {free / (1 << 30):.1f} GiB are free on {device.type}"
        )


def check_memory(
    name: str,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    bits: WeightBits,
    *,
    sharing: int = 1,
) -> None:
    """Whether there is room for a model in these bits, of which so many parts as are ``sharing``
    the memory are loaded; of a quantised one, whether that is asked.

    Raises:
        LoadError: it does not fit, or it would have to be quantised anew.
    """
    if config.quantisation is not None:
        if bits == 16:
            return
        raise LoadError(
            f"{name}: its weights are quantised already ({config.quantisation.method}) and are "
            "multiplied as they are: leave out --quantization"
        )

    def gib(width: float) -> float:
        plain = dtype.itemsize if width < 2 else int(width)
        return bytes_of_weights(config, width, plain) * sharing / (1 << 30)

    width = WIDTHS.get(bits, dtype.itemsize)
    free = free_memory_bytes(device) / (1 << 30)
    if gib(width) <= free:
        return
    offers = (("--dtype bfloat16", 2.0), ("--quantization int8", 1.0), ("--quantization int4", 0.6))
    fitting = [flag for flag, smaller in offers if smaller < width and gib(smaller) <= free]
    raise LoadError(
        f"{name}: {config.num_parameters * sharing / 1e9:.1f}G parameters in "
        f"{str(dtype).removeprefix('torch.')} take {gib(width):.1f} GiB, "
        f"{free:.1f} GiB are free on {device.type}; "
        + (f"{fitting[0]} would fit" if fitting else "no number type offered would fit")
    )
