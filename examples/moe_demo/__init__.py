"""The parts of moe_layer.py: text, layer, ranks, report."""
