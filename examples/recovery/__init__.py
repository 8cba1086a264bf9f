"""The parts of recover.py: the shared work, the ranks, the report."""
