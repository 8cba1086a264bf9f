"""A Llama-shaped decoder as one graph of tasks."""
