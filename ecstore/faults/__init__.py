"""Faults on order, for tests: a node started with `--allow-faults` delays, cuts, partitions and blocks itself."""
