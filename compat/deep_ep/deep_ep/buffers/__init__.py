"""Where DeepEP's second version keeps its two buffers."""
