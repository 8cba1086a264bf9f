// A static library needs at least one source.
