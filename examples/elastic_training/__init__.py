"""The parts of train_elastic.py: text, model, what a rank does, who watches over the ranks."""
