"""Device operations on tensors: one torch reference and one Triton kernel each."""
