"""The parts of train_moe.py: text, model, what a rank does, the picture."""
