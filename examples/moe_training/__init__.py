"""The parts of train_moe.py: text, model, ranks, plot."""
