"""Benchmarks beside a peer in the same run. Use the public client only, as an application would."""
