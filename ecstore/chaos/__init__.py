"""Chaos on real processes: nodes are killed, paused, cut off and slowed under load; afterwards every bit is checked."""
