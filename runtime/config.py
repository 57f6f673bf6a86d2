"""How an engine is to be run: which model, on what, with how much memory.

Knows nothing of model architectures (``runtime.model.config``) and reads no files. What
``auto`` stands for is decided where the device is known, in ``runtime.model.runner``.

Always true: an ``EngineConfig`` that exists has passed its bounds.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

DTypeName = Literal["auto", "bfloat16", "float16", "float32", "float64"]
DeviceName = Literal["auto", "cpu", "cuda"]
Quantization = Literal["none", "int8", "int4", "fp8"]
KVDTypeName = Literal["auto", "int8", "fp8"]
PolicyName = Literal["short_turn_first", "fair", "fcfs"]
CachePolicyName = Literal["lease", "lru"]


MOST_ADAPTERS = 256
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,128}")
TOKEN_GAP_MS = 100
TOKEN_GAP_MS_ON_GPU = 50
"""The default of ``token_gap_ms`` on a GPU."""


class ConfigError(ValueError):
    """A setting is out of its bounds. The message names it, its value and the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSource:
    """A LoRA adapter that is served beside the model."""

    name: str
    """The model's name in requests that are to be answered with it."""
    folder: str
    """Folder in PEFT's layout: ``adapter_config.json`` and ``adapter_model.safetensors``."""

    def __post_init__(self) -> None:
        if not _ADAPTER_NAME.fullmatch(self.name):
            raise ConfigError(
                f"adapters: {self.name[:80]!r} is no name of an adapter: give 1 to 128 letters, "
                "digits or any of . _ - / :"
            )
        if not self.folder:
            raise ConfigError(f"adapters: {self.name} has no folder: give NAME=FOLDER")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine process is started with."""

    model: str = "default"
    """Folder in Hugging Face layout, ``default``, ``hub:ORG/NAME[@REVISION]`` for a model that is
    fetched by its name, or ``random:NAME`` for trials."""

    adapters: tuple[AdapterSource, ...] = ()
    """LoRA adapters, at most ``MOST_ADAPTERS``; a turn is computed with one of them or with none.
    They are in memory from the start on, and share nothing in the prefix cache."""

    chat_format: str | None = None
    """How transcripts are written for the model, by the name of a format; None: as the folder's own
    chat template does it, which a folder without one needs. It is not asked of models that come
    along."""

    dtype: DTypeName = "auto"
    """Number type of weights and KV. ``auto``: bfloat16 where the machine has units for it or
    the compiled products of this package run (AVX2 and a compiler), else float32. float64 is
    for exactness tests."""

    device: DeviceName = "auto"
    """Where the model runs. ``auto``: a GPU if there is one, else the CPU."""

    quantization: Quantization = "none"
    """Quantisation made at load time; less memory traffic, some error. int8 and int4 round
    weights only; fp8 rounds weights and what they are multiplied with, on a GPU only."""

    kv_cache_dtype: KVDTypeName = "auto"
    """How keys and values are kept. ``auto``: as the model computes. int8 on a CPU and fp8 on
    a GPU: each token's key and value of a head in 8 bits with a scale, about half the memory, some
    error."""

    kv_cache_bytes: int | None = None
    """Memory for keys and values. None: a share of what is free after the weights."""

    num_blocks: int | None = None
    """Number of KV blocks, instead of ``kv_cache_bytes``."""

    state_slots: int | None = None
    """Slots for states of a model with recurrent layers, those of running turns included. None: one
    for each of ``max_running``, and some for each session that the KV has room for."""

    state_share: int | None = None
    """Share of the memory for KV and states that slots for states take, in percent, instead of
    ``state_slots``."""

    window_share: int | None = None
    """Share of the KV blocks that have room for rows of layers with a window, in percent: rows
    behind a window are given back. 100: every block has all rows. None: so many that transcripts of
    8,192 tokens can be gone on from at two places each. Without effect on models that have no such
    layers, or no others."""

    tensor_parallel: int = 1
    """Ranks, processes that compute one model together: each has an equal part of the heads, of
    the KV and of the widths between, on a GPU of its own where there are GPUs. Sizes of the
    device's memory are each rank's, and so are threads; those of main memory and disk are all
    ranks' together."""

    expert_parallel: bool = False
    """Ranks have whole experts, in equal numbers, instead of an equal part of each one's width."""

    block_size: int = 16
    """Tokens per KV block: the unit of sharing and eviction. A power of two."""

    host_kv_bytes: int = 0
    """Main memory for KV that has to leave the device; it comes back faster than it is
    computed. 0: what leaves is forgotten."""

    host_state_bytes: int | None = None
    """Main memory for states of a model with recurrent layers: each is copied there when its turn
    ends. None: a part of ``host_kv_bytes``, as large as on the device. Needs ``host_kv_bytes``."""

    disk_kv_bytes: int = 0
    """Disk for KV that has to leave main memory, and for restarts; states get the part that they
    have of main memory. Needs ``host_kv_bytes`` and a folder. 0: none."""

    disk_kv_folder: str | None = None
    """Folder for that, of this engine alone; it is made if missing. What is in it can be read
    back into text by whoever may read it."""

    max_context_tokens: int | None = None
    """Longest transcript. None: what the model's own configuration allows."""

    max_batch_tokens: int = 2048
    """Tokens one step may compute: bounds how long a prefill chunk delays running turns."""

    max_running: int = 256
    """Turns that may decode at the same time."""

    max_waiting: int = 1024
    """Turns that may wait for admission; one more is refused as overloaded, unless its tenant has
    less than its share of them. So twice as many wait at most."""

    prefill_tokens_beside_decodes: int = 2048
    """Most prefill tokens that one step may add while turns are decoding, however cheap they
    are. Unless the policy is ``fcfs`` the time they take is bounded as well, by
    ``token_gap_ms``."""

    token_gap_ms: int | None = None
    """Milliseconds between two tokens of a turn that prompts beside it may cause; None: 100 on a
    CPU, 50 on a GPU. Where a step of
    decodes alone takes more than half of it, twice such a step; where even a short chunk of a
    prompt takes longer, one such chunk."""

    startup_profile_ms: int = 1000
    """Milliseconds at the start for a few timed steps, which tell the scheduler what work costs
    before turns do. 0: it learns from turns alone."""

    startup_profile_folder: str | None = None
    """Folder that keeps what steps took and which layout of the weights was fastest, so that the
    next start knows more than it has time to find out and answers the same to the last bit; two
    steps are timed to see that it still holds. None: the command keeps it in the
    user's cache folder, beside the compiled kernels. An empty name keeps none."""

    first_token_limit_s: int = 600
    """A turn that would wait behind other prompts for longer than this many seconds, as predicted,
    is refused as overloaded at once."""

    output_reserve_percent: int = 100
    """Share of the running turns' expected output for which blocks are kept free when another
    turn is admitted. Less admits more turns and preempts them more often."""

    session_context_percent: int = 150
    """A new session waits while the transcripts of those that run, wait or are leased, and its
    own, exceed this share of the KV capacity, host memory included. Not with ``fcfs``."""

    max_draft_tokens: int = 16
    """Draft tokens one turn may have verified in a step; 0 turns drafting off."""

    draft_tokens_per_step: int = 32
    """Draft tokens of all turns of a step together."""

    policy: PolicyName = "short_turn_first"
    """Order of turns: least predicted remaining work first, the tenant with the least service
    first, or first come first served (the baseline)."""

    cache_policy: CachePolicyName = "lease"
    """The rules of eviction: ``lease`` keeps a session's KV while its tool runs, ``lru`` does not
    and is the baseline."""

    hung_after_s: int = 60
    """An engine process that shows no sign of life for so long, neither an answer nor work, is
    replaced as if it had died. 0: never."""

    step_limit_s: int = 1200
    """A step that computes longer than this hangs as well. It is meant to be far beyond what
    a turn may be predicted to take, see ``first_token_limit_s``."""

    load_hung_after_s: int = 300
    """An engine process that loads its model and shows no sign of life for longer than this,
    neither progress nor work nor a disk that it waits for, is killed. 0: never."""

    load_limit_s: int = 21600
    """Loading may take so long, however slow the disk is; an engine process that takes longer
    is killed. 0: no limit."""

    session_tokens_bytes: int = 256 * 1024 * 1024
    """Memory for the token ids of sessions the engine holds; the longest unused is
    forgotten first and its next turn sends its transcript again."""

    threads: int | None = None
    """CPU threads for the forward pass. None: all cores the process may use, or each rank's share
    of them."""

    seed: int = 0
    """Seed of the weights of ``random:*`` models."""

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, get_args(DTypeName))
        _check_choice("device", self.device, get_args(DeviceName))
        _check_choice("quantization", self.quantization, get_args(Quantization))
        _check_choice("kv_cache_dtype", self.kv_cache_dtype, get_args(KVDTypeName))
        _check_choice("policy", self.policy, get_args(PolicyName))
        _check_choice("cache_policy", self.cache_policy, get_args(CachePolicyName))
        if not self.model:
            raise ConfigError("model is empty: give a folder, 'default' or 'random:NAME'")
        if self.kv_cache_bytes is not None and self.num_blocks is not None:
            raise ConfigError("kv_cache_bytes and num_blocks are both given: give one of them")
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name} is {value!r}, an integer is needed")
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}, not in {low}..{high}")
        if self.state_slots is not None and self.state_share is not None:
            raise ConfigError("state_slots and state_share are both given: give one of them")
        if self.host_state_bytes and not self.host_kv_bytes:
            raise ConfigError("host_state_bytes needs host_kv_bytes: a state is of no use alone")
        if self.disk_kv_bytes and not (self.host_kv_bytes and self.disk_kv_folder):
            raise ConfigError("disk_kv_bytes needs host_kv_bytes and disk_kv_folder as well")
        if self.disk_kv_folder and not self.disk_kv_bytes:
            raise ConfigError("disk_kv_folder is given, but disk_kv_bytes is 0")
        if self.block_size & (self.block_size - 1):
            raise ConfigError(f"block_size is {self.block_size}, not a power of two")
        self._check_ranks()
        self._check_adapters()

    def _check_ranks(self) -> None:
        if self.expert_parallel and self.tensor_parallel == 1:
            raise ConfigError("expert_parallel is given, but tensor_parallel is 1")

    def _check_adapters(self) -> None:
        if len(self.adapters) > MOST_ADAPTERS:
            raise ConfigError(f"adapters are {len(self.adapters)}, at most {MOST_ADAPTERS} can be")
        names = [each.name for each in self.adapters]
        twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
        if twice is not None:
            raise ConfigError(f"adapters: {twice} is given twice: name each once")


BOUNDS: dict[str, tuple[int, int]] = {
    "kv_cache_bytes": (1 << 16, 1 << 44),
    "num_blocks": (2, 1 << 26),
    "state_slots": (1, 1 << 20),
    "state_share": (1, 90),
    "window_share": (1, 100),
    "host_kv_bytes": (0, 1 << 44),
    "host_state_bytes": (0, 1 << 44),
    "disk_kv_bytes": (0, 1 << 50),
    "tensor_parallel": (1, 64),
    "block_size": (4, 256),
    "max_context_tokens": (16, 1 << 24),
    "max_batch_tokens": (1, 1 << 17),
    "max_running": (1, 1 << 14),
    "max_waiting": (0, 1 << 20),
    "prefill_tokens_beside_decodes": (1, 1 << 17),
    "max_draft_tokens": (0, 64),
    "draft_tokens_per_step": (0, 1 << 12),
    "token_gap_ms": (1, 1 << 20),
    "startup_profile_ms": (0, 1 << 20),
    "first_token_limit_s": (1, 1 << 20),
    "hung_after_s": (0, 1 << 20),
    "step_limit_s": (1, 1 << 20),
    "load_hung_after_s": (0, 1 << 20),
    "load_limit_s": (0, 1 << 20),
    "output_reserve_percent": (0, 1000),
    "session_context_percent": (1, 1 << 20),
    "session_tokens_bytes": (1 << 12, 1 << 40),
    "threads": (1, 1024),
    "seed": (0, (1 << 63) - 1),
}
"""Least and most of what is a number."""


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, not one of {', '.join(choices)}")
