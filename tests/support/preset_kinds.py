"""Presets between which every kind of mixer, feed-forward, norm and router is."""

OF_OLD = ("qwen3-tiny", "qwen2-tiny", "llama-tiny", "mistral-tiny", "qwen3-moe-tiny")
MIXERS = ("smollm3-tiny", "granite-tiny", "ministral3-tiny", "gemma3-tiny", "olmo2-tiny")
ROUTERS = ("qwen2-moe-tiny", "glm4-moe-tiny", "minimax-m2-tiny", "gpt-oss-tiny")
SPARSE = ("deepseek-v32-tiny", "glm-dsa-tiny", "hy4-tiny")
COMPRESSED = ("deepseek-v4-tiny",)
LATENT = ("deepseek-v3-tiny", "deepseek-v2-tiny", "mistral4-tiny", "axk1-tiny", *SPARSE)
EXPERTS = (
    "minimax-m3-tiny",
    "mimo-v2-tiny",
    "laguna-tiny",
    "step3.5-tiny",
    "hy-v3-tiny",
    "dots1-tiny",
    "afmoe-tiny",
    "ernie4.5-moe-tiny",
)
DENSE = ("seed-oss-tiny", "glm4-tiny", "exaone4-tiny", "arcee-tiny")
GEMMA4 = ("gemma4-tiny", "gemma4-moe-tiny")
DELTA = ("qwen3.5-tiny", "kimi-linear-tiny")
HYBRIDS = (
    "lfm2-tiny",
    "lfm3-tiny",
    *DELTA,
    "glm5-next-tiny",
    "olmo-hybrid-tiny",
    "ling3-tiny",
    "granite-hybrid-tiny",
    "nemotron-h-tiny",
)
EVERY_KIND = (
    *(*OF_OLD, *MIXERS, *ROUTERS, *LATENT, *COMPRESSED, *EXPERTS, *DENSE, *GEMMA4),
    *HYBRIDS,
)
