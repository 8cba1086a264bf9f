"""The parts of balance_experts.py."""
