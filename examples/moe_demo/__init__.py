"""The parts of moe_layer.py: text, layer, what a rank does, and what is shown of it."""
