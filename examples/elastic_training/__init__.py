"""The parts of train_elastic.py: text, model, ranks, supervisor."""
