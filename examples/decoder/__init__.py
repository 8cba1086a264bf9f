"""A Llama-shaped decoder as one task graph."""
