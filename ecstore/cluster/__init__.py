"""The cluster map and what changes it: placement on the ring, transitions, moves. Pure."""
