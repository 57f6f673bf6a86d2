"""The loop: requests in, one step of the model after another, tokens out."""
