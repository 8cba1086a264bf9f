"""The parts of serve_elastic.py: requests, ranks, front, plot."""
