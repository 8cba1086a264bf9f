"""The parts of recover.py: the work that ranks share, what a rank does, the report."""
