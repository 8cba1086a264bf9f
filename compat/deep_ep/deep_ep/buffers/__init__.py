"""The package in which DeepEP's second version keeps its two buffers."""
