"""The reference engine: what any turn must produce, computed in the plainest way.

No cache, no batches, no pages: every token's logits come from a pass over the whole
transcript in float64. Written apart from ``kernels`` and the decoder, so that a fault there
cannot hide here; only weights and the config are shared. Sampling follows the published
law: penalties, mask, temperature, top-k, top-p, min-p, inverse of the cumulative
distribution at a uniform number keyed by (seed, position).
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from runtime.messages import SamplingParams
from runtime.model.compressed import Compressed
from runtime.model.config import Attention, Experts, Gated, Layer, ModelConfig, Plain, Router
from runtime.model.latent import Latent
from runtime.model.presets import random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, ShortConv
from tests.support.adapters import added_weights
from tests.support.reference_choice import chosen_pools, chosen_tokens, layer_norm, seen_blocks
from tests.support.reference_compressed import compressed, into_half, last_mixture, out_of_half
from tests.support.reference_rope import grow, rotate

AllowedTokens = Callable[[Sequence[int]], Collection[int] | None]
"""From the tokens a turn has emitted so far to those it may emit next; None = any."""


def free(emitted: Sequence[int]) -> None:
    """The mask of a turn without a grammar."""
    return


class ReferenceModel:
    """A decoder that recomputes everything, in float64."""

    def __init__(
        self, config: ModelConfig, weight: Callable[[str, tuple[int, ...]], Tensor]
    ) -> None:
        """``weight`` gives a tensor by its name in the checkpoint, in any float type."""
        self.config = config
        self._weight = weight
        self._kept: dict[str, Tensor] = {}
        self._made: list[tuple[Tensor, Tensor]] = []
        """Keys and values of the layers of attention so far."""
        self._chosen: Tensor | None = None
        """What the last layer with scores has chosen."""
        self._ids = torch.empty(0, dtype=torch.long)

    @classmethod
    def random(cls, preset: str, seed: int = 0) -> "ReferenceModel":
        """The weights of ``random:preset``."""
        source = RandomWeights(seed, torch.float64, torch.device("cpu"))
        return cls(random_model_config(preset), source.tensor)

    @classmethod
    def with_adapter(cls, preset: str, folder: Path) -> "ReferenceModel":
        """The same with what an adapter adds merged into the weights."""
        source = RandomWeights(0, torch.float64, torch.device("cpu"))
        added = added_weights(folder)

        def weight(name: str, shape: tuple[int, ...]) -> Tensor:
            plain, more = source.tensor(name, shape), added.get(name.removesuffix(".weight"))
            return plain if more is None else plain + more

        return cls(random_model_config(preset), weight)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, vocab] float64: row i predicts the token after ``tokens[i]``."""
        config = self.config
        with torch.inference_mode():
            x = self._get("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
            embedding = x
            ids = torch.as_tensor(np.asarray(tokens), dtype=torch.long)
            x = x[ids] * config.embedding_scale
            self._ids = ids
            if config.streams is not None:
                x = x[:, None].expand(-1, config.streams.count, -1)
            inputs = self._inputs(ids, x)
            self._made.clear()
            for index, layer in enumerate(config.layers):
                name = f"model.layers.{index}"
                for half, before, after in (
                    (self._mixer, "input_layernorm", "after_mixer_norm"),
                    (self.feed_forward, "post_attention_layernorm", "after_mlp_norm"),
                ):
                    if (layer.mixer if half == self._mixer else layer.feed_forward) is None:
                        continue
                    if config.streams is not None:
                        around = "attn_hc" if half == self._mixer else "ffn_hc"
                        y, *weights = into_half(self, f"{name}.{around}", x)
                        y = half(layer, name, self._norm(f"{name}.{before}", y))
                        x = out_of_half(x, y, *weights)
                        continue
                    apart = isinstance(layer.feed_forward, Experts) and layer.feed_forward.apart
                    bare = layer.norms == "after" or (apart and half == self.feed_forward)
                    y = x if bare else self._norm(f"{name}.{before}", x)
                    y = half(layer, name, y)
                    plain = ("before", "around_mlp") if half == self._mixer else ("before",)
                    y = y if layer.norms in plain else self._norm(f"{name}.{after}", y)
                    x = x + layer.residual_scale * y
                if inputs is not None:
                    gate = self._linear(f"{name}.per_layer_input_gate", x, inputs.shape[2], False)
                    y = _gelu(gate) * inputs[:, index]
                    y = self._linear(f"{name}.per_layer_projection", y, x.shape[1], False)
                    x = x + self._norm(f"{name}.post_per_layer_input_norm", y)
                if layer.learnt_scale:
                    x = x * self._get(f"{name}.layer_scale", 1)
            if config.streams is not None:
                x = last_mixture(self, x)
            x = self._norm("model.norm", x)
            if not config.tie_embeddings:
                shape = (config.vocab_size, config.hidden_size)
                embedding = self._get("lm_head.weight", *shape)
            logits = x @ embedding.T / config.logit_divisor
            if config.logit_cap is not None:
                logits = config.logit_cap * (logits / config.logit_cap).tanh()
            return self._shape(logits)

    def _inputs(self, ids: Tensor, x: Tensor) -> Tensor | None:
        """[tokens, layers, size] of what layers get of their own."""
        spec, layers = self.config.layer_inputs, self.config.num_layers
        if spec is None:
            return None
        table = self._get(
            "model.embed_tokens_per_layer.weight", spec.vocabulary, layers * spec.size
        )
        made = self._linear("model.per_layer_model_projection", x, layers * spec.size, False)
        made = (made / math.sqrt(x.shape[1])).view(len(ids), layers, spec.size)
        made = self._norm("model.per_layer_projection_norm", made)
        return (made + table[ids].view_as(made) * math.sqrt(spec.size)) / math.sqrt(2)

    def _shape(self, logits: Tensor) -> Tensor:
        shaping = self.config.shaping
        if shaping is None:
            return logits
        logits = logits.clone()
        for token in range(shaping.num_plain, self.config.vocab_size):
            if token != shaping.end_of_turn:
                logits[:, token] -= shaping.ban
        for position in range(len(logits)):
            if position % shaping.period == shaping.period - 1:
                logits[position, shaping.end_of_turn] += shaping.boost
        return logits

    def get(self, name: str, *shape: int) -> Tensor:
        """A weight in float64."""
        return self._get(name, *shape)

    def _get(self, name: str, *shape: int) -> Tensor:
        if name not in self._kept:
            self._kept[name] = self._weight(name, shape).double()
        return self._kept[name]

    def _norm(self, name: str, x: Tensor, eps: float | None = None) -> Tensor:
        weight = self._get(f"{name}.weight", x.shape[-1])
        eps = self.config.norm_eps if eps is None else eps
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight

    def _linear(self, name: str, x: Tensor, size: int, bias: bool) -> Tensor:
        x = x @ self._get(f"{name}.weight", size, x.shape[-1]).T
        return x + self._get(f"{name}.bias", size) if bias else x

    def _mixer(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        kinds = {
            ShortConv: self._convolution,
            GatedDelta: self._gated_delta,
            KimiDelta: self.kimi_delta,
            Mamba2: self._mamba2,
            Attention: self.attention,
            Latent: self.latent,
            Compressed: lambda layer, prefix, x: compressed(
                self, layer.mixer, f"{prefix}.self_attn", x
            ),
        }
        return kinds[type(layer.mixer)](layer, prefix, x)

    def _gated_delta(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        spec, name = layer.mixer, f"{prefix}.linear_attn"
        sizes = {"q": spec.key_size, "k": spec.key_size, "v": spec.value_size}
        parts = [self._linear(f"{name}.in_proj_{each}", x, sizes[each], False) for each in "qkv"]
        inputs = torch.cat(parts, 1)
        taps = self._get(f"{name}.conv1d.weight", spec.channels, 1, spec.taps)
        mixed = torch.zeros_like(inputs)
        for back in range(min(len(x), spec.taps)):
            mixed[back:] += inputs[: len(x) - back] * taps[:, 0, spec.taps - 1 - back]
        mixed = mixed / (1 + (-mixed).exp())
        queries, keys, values = mixed.split(list(sizes.values()), 1)
        heads, each = spec.value_heads, spec.value_heads // spec.key_heads
        gates = self._linear(f"{name}.in_proj_z", x, spec.value_size, False)
        betas = self._linear(f"{name}.in_proj_b", x, heads, False)
        paces = self._linear(f"{name}.in_proj_a", x, heads, False)
        paces = (1 + (paces + self._get(f"{name}.dt_bias", heads)).exp()).log()
        kept = (-self._get(f"{name}.A_log", heads).exp() * paces).exp()
        scale = self._get(f"{name}.gated_norm.scale", spec.value_dim)
        queries, keys = (
            y.view(len(x), spec.key_heads, spec.key_dim).repeat_interleave(each, 1)
            for y in (queries, keys)
        )
        queries, keys = (
            y / (y.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for y in (queries, keys)
        )
        values = values.view(len(x), heads, spec.value_dim)
        matrix, rows = x.new_zeros(heads, spec.key_dim, spec.value_dim), []
        for at in range(len(x)):
            matrix = kept[at, :, None, None] * matrix
            missing = values[at] - (keys[at, :, :, None] * matrix).sum(1)
            missing = spec.most_beta * missing / (1 + (-betas[at, :, None]).exp())
            matrix = matrix + keys[at, :, :, None] * missing[:, None, :]
            rows.append((queries[at, :, :, None] * matrix).sum(1) / math.sqrt(spec.key_dim))
        output = torch.stack(rows)
        eps = self.config.norm_eps if spec.norm_eps is None else spec.norm_eps
        output = output / (output.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        output = (output * scale).flatten(1) * gates / (1 + (-gates).exp())
        return self._linear(f"{name}.out_proj", output, x.shape[1], False)

    def kimi_delta(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        spec, name, tokens = layer.mixer, f"{prefix}.linear_attn", len(x)
        heads, size = spec.heads, spec.heads * spec.head_dim
        rows = []
        for part in "qkv":
            inputs = self._linear(f"{name}.{part}_proj", x, size, False)
            taps = self._get(f"{name}.{part}_conv1d.weight", size, 1, spec.taps)
            mixed = torch.zeros_like(inputs)
            for back in range(min(tokens, spec.taps)):
                mixed[back:] += inputs[: tokens - back] * taps[:, 0, spec.taps - 1 - back]
            rows.append((mixed / (1 + (-mixed).exp())).view(tokens, heads, -1))
        queries, keys, values = rows
        queries, keys = (
            y / (y.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for y in (queries, keys)
        )
        steps, gates = (
            self._linear(
                f"{name}.{part}_b_proj",
                self._linear(f"{name}.{part}_a_proj", x, spec.head_dim, False),
                size,
                False,
            )
            if spec.two_steps
            else self._linear(f"{name}.{part}_proj", x, size, False)
            for part in "fg"
        )
        steps, gates = (y.view(tokens, heads, -1) for y in (steps, gates))
        betas = self._linear(f"{name}.b_proj", x, heads, False)
        steps = steps + self._get(f"{name}.dt_bias", size).view(heads, -1)
        if spec.lowest is None:
            shape = (1, 1, heads, 1) if spec.two_steps else (heads,)
            rates = self._get(f"{name}.A_log", *shape).view(heads, 1).exp()
            kept = (-rates * (1 + steps.exp()).log()).exp()
        else:
            rates = self._get(f"{name}.A_log", heads)[:, None].exp()
            kept = (spec.lowest / (1 + (-rates * steps).exp())).exp()
        matrix, found = x.new_zeros(heads, spec.head_dim, spec.head_dim), []
        for at in range(tokens):
            matrix = kept[at][:, :, None] * matrix
            missing = values[at] - (keys[at][:, :, None] * matrix).sum(1)
            missing = missing / (1 + (-betas[at, :, None]).exp())
            matrix = matrix + keys[at][:, :, None] * missing[:, None, :]
            found.append((queries[at][:, :, None] * matrix).sum(1) / math.sqrt(spec.head_dim))
        output = self._norm(f"{name}.o_norm", torch.stack(found)) / (1 + (-gates).exp())
        return self._linear(f"{name}.o_proj", output.flatten(1), x.shape[1], False)

    def _mamba2(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        spec, name, tokens = layer.mixer, f"{prefix}.mamba", len(x)
        shared = spec.groups * spec.state_dim
        rows = [spec.size, spec.size, shared, shared, spec.heads]
        gates, *inputs, steps = self._linear(f"{name}.in_proj", x, sum(rows), spec.bias).split(
            rows, 1
        )
        inputs = torch.cat(inputs, 1)
        taps = self._get(f"{name}.conv1d.weight", spec.channels, 1, spec.taps)
        mixed = torch.zeros_like(inputs)
        for back in range(min(tokens, spec.taps)):
            mixed[back:] += inputs[: tokens - back] * taps[:, 0, spec.taps - 1 - back]
        if spec.conv_bias:
            mixed = mixed + self._get(f"{name}.conv1d.bias", spec.channels)
        mixed = mixed / (1 + (-mixed).exp())
        values, into, out_of = mixed.split(rows[1:4], 1)
        steps = (1 + (steps + self._get(f"{name}.dt_bias", spec.heads)).exp()).log()
        steps = steps.clamp(spec.least_step, spec.most_step)
        kept = (-self._get(f"{name}.A_log", spec.heads).exp() * steps).exp()
        values = values.view(tokens, spec.heads, spec.head_dim)
        group_of = torch.arange(spec.heads) // (spec.heads // spec.groups)
        into, out_of = (y.view(tokens, spec.groups, -1)[:, group_of] for y in (into, out_of))
        matrix = x.new_zeros(spec.heads, spec.head_dim, spec.state_dim)
        output = torch.zeros_like(values)
        for at in range(tokens):
            taken = torch.einsum("hp,hn->hpn", steps[at, :, None] * values[at], into[at])
            matrix = kept[at, :, None, None] * matrix + taken
            output[at] = torch.einsum("hpn,hn->hp", matrix, out_of[at])
        output = output + self._get(f"{name}.skip", spec.heads)[:, None] * values
        output = output.flatten(1) * gates / (1 + (-gates).exp())
        groups = output.view(tokens, spec.groups, -1)
        groups = groups / (groups.pow(2).mean(-1, keepdim=True) + self.config.norm_eps).sqrt()
        output = groups.flatten(1) * self._get(f"{name}.gated_norm.scale", spec.size)
        return self._linear(f"{name}.out_proj", output, x.shape[1], spec.bias)

    def _convolution(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        spec, name = layer.mixer, f"{prefix}.conv"
        size = spec.channels
        parts = self._linear(f"{name}.in_proj", x, 3 * size, spec.bias)
        before, after, values = parts.split(size, dim=1)
        inputs = before * values
        taps = self._get(f"{name}.conv.weight", size, 1, spec.taps)
        mixed = torch.zeros_like(inputs)
        for back in range(min(len(x), spec.taps)):
            mixed[back:] += inputs[: len(x) - back] * taps[:, 0, spec.taps - 1 - back]
        if spec.bias:
            mixed += self._get(f"{name}.conv.bias", size)
        return self._linear(f"{name}.out_proj", after * mixed, x.shape[1], spec.bias)

    def attention(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        spec, name = layer.mixer, f"{prefix}.self_attn"
        parts = []
        gates = None
        own = (("q", spec.heads), ("k", spec.kv_heads), ("v", spec.kv_heads))
        own = own[: 1 if spec.shares is not None else 2 if spec.keys_are_values else 3]
        for part, heads in own:
            taken = 2 if spec.gated and not spec.gate_apart and part == "q" else 1
            size = spec.value_dim if part == "v" and spec.value_dim else spec.head_dim
            y = self._linear(f"{name}.{part}_proj", x, taken * heads * size, spec.bias)
            if taken == 2:
                both = y.view(len(x), heads, 2, spec.head_dim)
                y, gates = both[:, :, 0].flatten(1), both[:, :, 1].flatten(1)
            if spec.norm == "all" and part != "v":
                y = self._norm(f"{name}.{part}_norm", y)
            y = y.view(len(x), heads, size)
            if part == ("k" if spec.keys_are_values else "v"):
                values = y
                if spec.value_norm:
                    values = y / (y.pow(2).mean(-1, keepdim=True) + self.config.norm_eps).sqrt()
            if spec.norm == "each" and part != "v":
                y = self._norm(f"{name}.{part}_norm", y)
            if spec.interleaved and spec.rope is not None and part != "v":
                turned = spec.rope.rotated or spec.head_dim
                pairs = [*range(0, turned, 2), *range(1, turned, 2)]
                y = y[..., [*pairs, *range(turned, spec.head_dim)]]
            parts.append(y if part == "v" or spec.rope is None else rotate(y, spec.rope))
        if spec.gate_apart:
            gates = self._linear(f"{name}.gate_proj", x, spec.query_size, False)
        queries = parts[0]
        keys, values = self._made[spec.shares] if spec.shares is not None else (parts[1], values)
        self._made.append((keys, values))
        if spec.rope is not None:
            grow(queries, spec.rope)
        position = torch.arange(len(x))
        distance = position[:, None] - position[None, :]
        visible = distance >= 0
        if spec.window is not None:
            visible &= distance < spec.window
        by_head = visible.expand(spec.kv_heads, -1, -1)
        if spec.choice is not None:
            by_head = by_head & self._choice_of_blocks(spec, f"{name}.indexer", x)
        scale = 1 / math.sqrt(spec.head_dim) if spec.scale is None else spec.scale
        outputs = []
        for head in range(spec.heads):
            shared = head * spec.kv_heads // spec.heads
            scores = queries[:, head] @ keys[:, shared].T * scale
            scores = torch.where(by_head[shared], scores, -torch.inf)
            most = scores.max(-1, keepdim=True).values
            weights = (scores - most).exp()
            total = weights.sum(-1, keepdim=True)
            if spec.sinks:
                total = total + (self._get(f"{name}.sinks", spec.heads)[head] - most).exp()
            outputs.append(weights / total @ values[:, shared] * spec.value_scale)
            if spec.gated_heads:
                gate = self._linear(f"{name}.g_proj", x, spec.heads, False)[:, head, None]
                outputs[-1] = outputs[-1] * _opened(spec, gate)
        output = torch.cat(outputs, -1)
        if gates is not None:
            output = output * _opened(spec, gates)
        return self._linear(f"{name}.o_proj", output, self.config.hidden_size, spec.output_bias)

    def _choice_of_blocks(self, spec: Attention, name: str, x: Tensor) -> Tensor:
        """[kv_heads, tokens, tokens]: which tokens each may see."""
        choice = spec.choice
        queries = self._linear(f"{name}.q_proj", x, spec.kv_heads * choice.dim, False)
        queries = self._norm(f"{name}.q_norm", queries.view(len(x), -1, choice.dim))
        keys = self._norm(f"{name}.k_norm", self._linear(f"{name}.k_proj", x, choice.dim, False))
        queries, keys = rotate(queries, spec.rope), rotate(keys[:, None], spec.rope)
        return seen_blocks(queries, keys[:, 0], choice.size, choice.count, choice.local)

    def latent(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        """With keys and values of every head, as they are defined."""
        spec, name, tokens = layer.mixer, f"{prefix}.self_attn", len(x)
        query_size = spec.heads * (spec.plain_dim + spec.rotary_dim)
        if spec.query_rank is None:
            queries = self._linear(f"{name}.q_proj", x, query_size, False)
        else:
            queries = self._linear(f"{name}.q_a_proj", x, spec.query_rank, spec.bias)
            query_latents = self._norm(f"{name}.q_a_layernorm", queries, spec.eps)
            queries = self._linear(f"{name}.q_b_proj", query_latents, query_size, False)
        row = self._linear(f"{name}.kv_a_proj_with_mqa", x, spec.rank + spec.rotary_dim, spec.bias)
        latents = self._norm(f"{name}.kv_a_layernorm", row[:, : spec.rank], spec.eps)
        made = self._linear(
            f"{name}.kv_b_proj", latents, spec.heads * (spec.plain_dim + spec.value_dim), False
        ).view(tokens, spec.heads, -1)
        queries = queries.view(tokens, spec.heads, -1)
        shared = row[:, None, spec.rank :]
        if spec.interleaved:
            pairs = [*range(0, spec.rotary_dim, 2), *range(1, spec.rotary_dim, 2)]
            shared = shared[..., pairs]
            turning = queries[..., spec.plain_dim :][..., pairs]
        else:
            turning = queries[..., spec.plain_dim :]
        turned, shared = (
            y if spec.rope is None else rotate(y, spec.rope) for y in (turning, shared)
        )
        shared = shared[:, 0]
        if spec.rope is not None:
            grow(queries, spec.rope)
            grow(turned, spec.rope)
        scale = 1 / math.sqrt(spec.plain_dim + spec.rotary_dim)
        visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        if spec.indexer is not None:
            if not spec.indexer.shared:
                self._chosen = self._choice(spec, f"{name}.indexer", x, query_latents)
            visible &= self._chosen
        outputs = []
        for head in range(spec.heads):
            keys, values = made[:, head].split([spec.plain_dim, spec.value_dim], 1)
            scores = queries[:, head, : spec.plain_dim] @ keys.T + turned[:, head] @ shared.T
            scores = scores * (scale if spec.scale is None else spec.scale)
            scores = torch.where(visible, scores, -torch.inf)
            if spec.sinks:
                sink = self._get(f"{name}.sinks", spec.heads)[head].expand(tokens, 1)
                scores = torch.cat((scores, sink), 1)
            outputs.append(scores.softmax(-1)[:, :tokens] @ values)
        if spec.gated:
            kind = {"heads": ("g_proj", 1), "numbers": ("gate_proj", spec.value_dim)}
            projection, size = kind[spec.gated]
            gates = self._linear(f"{name}.{projection}", x, spec.heads * size, False)
            weights = (1 / (1 + (-gates).exp())).split(size, 1)
            outputs = [one * weight for one, weight in zip(outputs, weights, strict=True)]
        output = torch.cat(outputs, -1)
        return self._linear(f"{name}.o_proj", output, self.config.hidden_size, spec.bias)

    def _choice(self, spec: Latent, name: str, x: Tensor, query_latents: Tensor) -> Tensor:
        """[tokens, tokens]: which tokens each may see."""
        indexer, tokens = spec.indexer, len(x)
        queries = self._linear(f"{name}.wq_b", query_latents, indexer.heads * indexer.dim, False)
        keys = self._linear(f"{name}.wk", x, indexer.dim, False)
        norm = [self._get(f"{name}.k_norm.{each}", indexer.dim) for each in ("weight", "bias")]
        low = indexer.dim - spec.rotary_dim if indexer.turns_last else 0
        turned = [*range(low, low + spec.rotary_dim)]
        rest = [each for each in range(indexer.dim) if each not in turned]
        if indexer.interleaved:
            turned = [*turned[::2], *turned[1::2]]
        queries, keys = (
            y
            if spec.rope is None
            else torch.cat((rotate(y[..., turned], spec.rope), y[..., rest]), -1)
            for y in (
                queries.view(tokens, -1, indexer.dim),
                layer_norm(keys, *norm, indexer.eps)[:, None],
            )
        )
        weights = self._linear(f"{name}.weights_proj", x, indexer.heads, False)
        if indexer.pool > 1:
            gates = x @ self._get(f"{name}.pool_gate", indexer.dim, x.shape[1]).T
            bias = self._get(f"{name}.pool_bias", indexer.pool, indexer.dim)
            return chosen_pools(queries, keys[:, 0], weights, gates, bias, indexer.top_k)
        return chosen_tokens(queries, keys[:, 0], weights, indexer.top_k)

    def feed_forward(self, layer: Layer, prefix: str, x: Tensor) -> Tensor:
        """[tokens, hidden]; of experts apart what goes in is not normed."""
        spec, name = layer.feed_forward, f"{prefix}.mlp"
        if not isinstance(spec, Experts):
            return self._gated(name, x, spec)
        weights = self._routed(f"{name}.gate", spec.router, x, self._ids)
        seen, total = x, torch.zeros_like(x)
        if spec.apart:
            seen = self._norm(f"{prefix}.post_attention_layernorm", x)
            x = self._norm(f"{prefix}.before_experts_norm", x)
        for index in range(spec.router.num_experts):
            one = self._gated(f"{name}.experts.{index}", x, spec.each)
            total = total + weights[:, index, None] * one
        if spec.shared is None:
            return total
        shared = self._gated(f"{name}.shared_expert", seen, spec.shared)
        if spec.apart:
            shared = self._norm(f"{prefix}.after_dense_norm", shared)
            total = self._norm(f"{prefix}.after_experts_norm", total)
        if spec.shared_gate:
            gate = self._linear(f"{name}.shared_expert_gate", x, 1, False)
            shared = shared / (1 + (-gate).exp())
        return total + shared

    def _routed(self, name: str, router: Router, x: Tensor, ids: Tensor | None) -> Tensor:
        """[tokens, experts]: the weight of each, 0 for those not taken; ``ids``: the tokens'."""
        if router.scaled:
            x = x / (x.pow(2).mean(-1, keepdim=True) + self.config.norm_eps).sqrt()
            x = x * self._get(f"{name}.input_scale", x.shape[1]) / math.sqrt(x.shape[1])
        scores = self._linear(name, x, router.num_experts, router.bias)
        if router.logit_cap is not None:
            scores = router.logit_cap * (scores / router.logit_cap).tanh()
        scores = {
            "sigmoid": lambda: 1 / (1 + (-scores).exp()),
            "sqrt_softplus": lambda: (1 + scores.exp()).log().sqrt(),
            "softmax": lambda: scores.softmax(-1),
        }[router.scores]()
        choice = scores
        if router.table_rows is not None:
            table = self._get(f"{name}.tid2eid", router.table_rows, router.per_token)[ids]
            choice = torch.zeros_like(scores).scatter(1, table.long(), 1.0)
        if router.correction:
            choice = choice + self._get(f"{name}.e_score_correction_bias", router.num_experts)
        rows = []
        for score, chance in zip(scores.tolist(), choice.tolist(), strict=True):
            each = router.num_experts // router.groups
            groups = [list(range(g * each, g * each + each)) for g in range(router.groups)]
            best = router.best_of_group
            groups.sort(key=lambda group: -sum(sorted(chance[e] for e in group)[-best:]))
            allowed = [expert for group in groups[: router.chosen_groups] for expert in group]
            taken = sorted(allowed, key=lambda expert: -chance[expert])[: router.per_token]
            total = sum(score[expert] for expert in taken) if router.normalise else 1.0
            row = [0.0] * router.num_experts
            for expert in taken:
                row[expert] = score[expert] / total * router.scale
            rows.append(row)
        weights = torch.tensor(rows, dtype=torch.float64)
        if router.scaled:
            weights = weights * self._get(f"{name}.expert_scale", router.num_experts)
        return weights

    def _gated(self, name: str, x: Tensor, spec: Gated | Plain) -> Tensor:
        if isinstance(spec, Plain):
            inner = self._linear(f"{name}.up_proj", x, spec.size, spec.bias)
            inner = torch.where(inner > 0, inner * inner, 0.0)
            return self._linear(f"{name}.down_proj", inner, self.config.hidden_size, spec.bias)
        gate = self._linear(f"{name}.gate_proj", x, spec.size, spec.bias)
        up = self._linear(f"{name}.up_proj", x, spec.size, spec.bias)
        if spec.activation == "clamped_swiglu":
            gate, up = gate.clamp(max=spec.limit), up.clamp(-spec.limit, spec.limit) + 1
            gated = gate / (1 + (-1.702 * gate).exp()) * up
        elif spec.activation == "clamped_silu":
            gate, up = gate.clamp(max=spec.limit), up.clamp(-spec.limit, spec.limit)
            gated = gate / (1 + (-gate).exp()) * up
        elif spec.activation == "clamped_after_silu":
            inner = gate / (1 + (-gate).exp())
            gated = inner.clamp(max=spec.limit) * up.clamp(-spec.limit, spec.limit)
        elif spec.activation == "gelu_tanh":
            gated = _gelu(gate) * up
        else:
            gated = gate / (1 + (-gate).exp()) * up
        return self._linear(f"{name}.down_proj", gated, self.config.hidden_size, spec.bias)


def _opened(spec: Attention, gate: Tensor) -> Tensor:
    """What a gate multiplies with."""
    if spec.gate_function == "softplus":
        return (1 + gate.exp()).log()
    return 1 / (1 + (-gate).exp())


def _gelu(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * (1 + inner.tanh()) / 2


def uniform(seed: int, position: int) -> float:
    """53 random bits of Philox4x32-10 with key ``seed`` and counter ``position``."""
    key = [seed % 2**32, seed // 2**32 % 2**32]
    counter = [position % 2**32, position // 2**32, 0, 0]
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            right // 2**32 ^ counter[1] ^ key[0],
            right % 2**32,
            left // 2**32 ^ counter[3] ^ key[1],
            left % 2**32,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return ((counter[0] // 32) * 2**26 + counter[1] // 64) / 2**53


def draw(
    logits: Tensor,
    params: SamplingParams,
    position: int,
    emitted: Sequence[int],
    allowed: Collection[int] | None,
) -> int:
    """The token at ``position`` given the logits [vocab] before it."""
    values = logits.double().numpy().copy()
    for token in set(emitted):
        value = values[token]
        penalty = params.repetition_penalty
        value = value / penalty if value > 0 else value * penalty
        value -= params.frequency_penalty * list(emitted).count(token)
        values[token] = value - params.presence_penalty
    if allowed is not None:
        forbidden = np.ones(len(values), dtype=bool)
        forbidden[list(allowed)] = False
        values[forbidden] = -np.inf
    if params.temperature == 0:
        return int(values.argmax())
    mass = np.exp((values - values.max()) / params.temperature)
    if params.top_k:
        mass[mass < np.sort(mass)[::-1][min(params.top_k, len(mass)) - 1]] = 0
    if params.top_p < 1:
        falling = np.sort(mass)[::-1]
        before = np.cumsum(falling) - falling
        mass[mass < falling[before < params.top_p * falling.sum()][-1]] = 0
    mass[mass < params.min_p * mass.max()] = 0
    cumulative = np.cumsum(mass)
    target = uniform(params.seed % 2**64, position) * cumulative[-1]
    return int(np.searchsorted(cumulative, target, side="right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTurn:
    """A turn as the engine is asked for it."""

    prompt: Sequence[int]
    params: SamplingParams
    max_new_tokens: int
    end_tokens: Collection[int]
    allowed: AllowedTokens = free


def generate(model: ReferenceModel, turn: ReferenceTurn) -> list[int]:
    """All tokens of the turn, each from a pass over everything before it."""
    emitted: list[int] = []
    while len(emitted) < turn.max_new_tokens:
        transcript = [*turn.prompt, *emitted]
        emitted.append(_next(model.logits(transcript)[-1], turn, emitted))
        if emitted[-1] in turn.end_tokens:
            break
    return emitted


def first_difference(model: ReferenceModel, turn: ReferenceTurn, emitted: Sequence[int]) -> int:
    """Where ``emitted`` departs from what ``generate`` gives; its length if nowhere.

    One pass instead of one per token: each token is compared with the one drawn after the
    emitted tokens before it, so the answer is the same.
    """
    emitted = list(emitted)
    rows = model.logits([*turn.prompt, *emitted])[len(turn.prompt) - 1 :]
    for index, token in enumerate(emitted):
        over = index >= turn.max_new_tokens or (index and emitted[index - 1] in turn.end_tokens)
        if over or token != _next(rows[index], turn, emitted[:index]):
            return index
    return len(emitted)


def _next(logits: Tensor, turn: ReferenceTurn, emitted: list[int]) -> int:
    position = len(turn.prompt) + len(emitted)
    return draw(logits, turn.params, position, emitted, turn.allowed(emitted))
