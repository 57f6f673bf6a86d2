"""The one layer that models of benchmarks repeat: attention with positions, and one MLP."""

from runtime.model.config import Attention, Gated, ModelConfig
from runtime.model.rope_config import RopeConfig


def dense_layer(config: ModelConfig) -> tuple[Attention, Gated, RopeConfig]:
    """Mixer, MLP and positions of every layer.

    Raises:
        ValueError: the layers differ, or are of other kinds.
    """
    layer = config.layers[0]
    mlp, rope = layer.feed_forward, layer.mixer.rope
    if any(each != layer for each in config.layers) or not isinstance(mlp, Gated) or rope is None:
        raise ValueError(f"layers of {config.model_type} are not alike and dense")
    return layer.mixer, mlp, rope
