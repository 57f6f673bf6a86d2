"""The model on its device: weights, KV pool, a step's batch, logits to tokens."""
