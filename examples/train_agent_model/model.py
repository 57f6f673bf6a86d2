"""The network that is trained: Qwen3 in plain torch, whole sequences at a time.

Parameter names are those of Hugging Face's ``Qwen3ForCausalLM``, so that the state dict
is the export. There is no cache here: the runtime's own model serves, this one learns.
Architecture: pre-norm RMSNorm, rotary positions, grouped-query attention with per-head
norms on queries and keys, SwiGLU, tied embeddings, no biases (Qwen3 technical report,
arXiv:2505.09388).
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.train_agent_model.rendering import NO_LABEL, Label

QUERY_CHUNK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of the network, in the words of Hugging Face's config."""

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 7
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 256
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6

    def hugging_face_config(self, end_of_turn: int, max_positions: int) -> dict[str, object]:
        """Return ``config.json`` of the exported folder."""
        return asdict(self) | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "max_position_embeddings": max_positions,
            "bos_token_id": None,
            "eos_token_id": end_of_turn,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }


def shape_of(folder: Path) -> ModelShape:
    """Read the shape of an exported model."""
    config = json.loads((folder / "config.json").read_text())
    return ModelShape(**{field.name: config[field.name] for field in fields(ModelShape)})


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of ``x`` [batch, heads, length, head_dim] by its angle."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


@torch.compiler.disable  # type: ignore[untyped-decorator]
def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Mix ``v`` [batch, heads, length, head_dim] by the scores of ``q`` on earlier ``k``.

    On a CPU torch's fused attention takes twice as long, forward and back, as products of
    ``QUERY_CHUNK`` queries with the keys they see.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    length, head_dim = q.shape[2:]
    q, keys, values = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    mixed = []
    for start in range(0, length, QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, length)
        hidden = q.new_full((stop - start, stop), -1e9).triu(start + 1)
        scores = torch.baddbmm(
            hidden.expand(len(q), -1, -1),
            q[:, start:stop],
            keys[:, :stop].transpose(1, 2),
            alpha=head_dim**-0.5,
        )
        mixed.append(scores.softmax(-1).to(v.dtype) @ values[:, :stop])
    return torch.cat(mixed, dim=1).view_as(v)


class Attention(nn.Module):
    """Causal grouped-query attention with normed queries and keys."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self.head_dim = shape.head_dim
        size, wide = shape.hidden_size, self.heads * self.head_dim
        self.q_proj = nn.Linear(size, wide, bias=False)
        self.k_proj = nn.Linear(size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(wide, size, bias=False)
        self.q_norm = Norm(self.head_dim, shape.rms_norm_eps)
        self.k_norm = Norm(self.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin)
        groups = self.heads // self.kv_heads
        k = k.repeat_interleave(groups, dim=1)
        v = v.transpose(1, 2).repeat_interleave(groups, dim=1)
        mixed = causal_attention(q, k, v)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One transformer block."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """Embedding, layers and final norm: token ids to hidden states."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the normed output, and the stream after each layer."""
        half = self.shape.head_dim // 2
        steps = torch.arange(half, device=tokens.device, dtype=torch.float32) / half
        positions = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        angles = positions[:, None] * self.shape.rope_theta**-steps
        x = self.embed_tokens(tokens)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        if torch.is_autocast_enabled(tokens.device.type):
            x, cos, sin = x.bfloat16(), cos.bfloat16(), sin.bfloat16()
        streams = []
        for layer in self.layers:
            x = layer(x, cos, sin)
            streams.append(x)
        out: Tensor = self.norm(x)
        return out, streams


class AgentModel(nn.Module):
    """Qwen3ForCausalLM with tied embeddings."""

    def __init__(self, shape: ModelShape, *, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Start with heads that copy: each output projection is half its value projection's
        transpose (mimetic initialisation, Trockman and Kolter 2023, arXiv:2305.09828)."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = 0.1 if "embed" in name else parameter.shape[1] ** -0.5
                parameter.normal_(0.0, scale, generator=generator)
        for module in self.modules():
            if isinstance(module, FeedForward):
                module.down_proj.weight.mul_(0.1)
            elif isinstance(module, Attention):
                nn.init.orthogonal_(module.v_proj.weight, generator=generator)
                values = module.v_proj.weight.view(module.kv_heads, module.head_dim, -1)
                groups = module.heads // module.kv_heads
                copied = values.repeat_interleave(groups, dim=0).flatten(0, 1)
                module.o_proj.weight.copy_(copied.T / 2)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Map ``tokens`` [batch, length] to hidden states [batch, length, hidden_size]."""
        out: Tensor = self.model(tokens)[0]
        return out

    def hidden_and_streams(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return what ``hidden`` does, and the stream after each layer, of the same shape."""
        out: tuple[Tensor, list[Tensor]] = self.model(tokens)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., hidden_size] to float32 logits [..., vocab_size]."""
        return F.linear(hidden, self.model.embed_tokens.weight).float()


class YesNoProbe(nn.Module):
    """Reads a yes or no from a stream."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.direction = nn.Parameter(torch.zeros(shape.hidden_size))
        self.bias = nn.Parameter(torch.zeros(1))

    def loss(self, stream: Tensor, wanted: Tensor, embedding: Tensor) -> Tensor:
        """Return the mean loss of saying ``wanted`` [count], 1 for yes, from ``stream`` [count,
        hidden_size]."""
        odds = (self.norm(stream) * self.direction).sum(-1).float() + self.bias
        return F.binary_cross_entropy_with_logits(odds, wanted.float(), reduction="mean")


class TokenProbe(nn.Module):
    """Reads a token from a stream."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.reading = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        nn.init.eye_(self.reading.weight)

    def loss(self, stream: Tensor, wanted: Tensor, embedding: Tensor) -> Tensor:
        """Return the mean loss of saying ``wanted`` [count], ids, from ``stream`` [count,
        hidden_size]."""
        read = self.reading(self.norm(stream))
        return F.cross_entropy(F.linear(read, embedding.detach()).float(), wanted)


PROBES: dict[Label, tuple[type[YesNoProbe | TokenProbe], float, float]] = {
    Label.OWNER: (TokenProbe, 0.4, 0.2),
    Label.KNOWN: (YesNoProbe, 0.6, 0.2),
    Label.CHOSEN: (TokenProbe, 0.75, 0.2),
    Label.OWNER_SECOND: (TokenProbe, 0.4, 0.2),
    Label.CHOSEN_SECOND: (TokenProbe, 0.75, 0.2),
    Label.MORE: (YesNoProbe, 0.75, 1.0),
}
"""What reads each label, after which share of the layers, and the weight of its loss beside that of
predicting tokens: a choice among the tools takes what their schemas were found to say, and the last
layers act on it."""


class Probes(nn.Module):
    """Reads from the middle of the network what ``Label`` says of a token.

    They exist in training only: the gradients of their losses build the features that the choices
    of the model need (between a call and a refusal, among tools, between one argument and two),
    and nothing of them is exported.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self._layers = {
            label: max(0, round(share * shape.num_hidden_layers) - 1)
            for label, (_, share, _) in PROBES.items()
        }
        self.readers = nn.ModuleDict({label: kind(shape) for label, (kind, _, _) in PROBES.items()})

    def losses(
        self,
        streams: list[Tensor],
        labels: dict[Label, Tensor],
        embedding: Tensor,
        *,
        only_read: bool = False,
    ) -> dict[Label, Tensor]:
        """Return the mean loss of each label; those that no token has are left out.

        Args:
            only_read: no gradient reaches the network.
            streams: [batch, length, hidden_size] after each layer.
            labels: [batch, length] each, NO_LABEL where there is none.
            embedding: [vocab_size, hidden_size].
        """
        found = {}
        for label, wanted in labels.items():
            labelled = wanted != NO_LABEL
            if labelled.any():
                reader = self.readers[label]
                assert isinstance(reader, YesNoProbe | TokenProbe)
                stream = streams[self._layers[label]][labelled]
                if only_read:
                    stream = stream.detach()
                found[label] = reader.loss(stream, wanted[labelled], embedding)
        return found
