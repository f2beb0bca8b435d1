"""A deterministic simulator of a whole cluster: `python -m tests.sim --seeds 0:500`.

The node, the coordination service and the client are the real ones. What is simulated is the event loop (time jumps
to the next timer), the network (`network`), and the processes (`process`): killed, paused, slow. Everything that is
left to chance is drawn from one seed, so a seed that fails once fails every time, with the same story.
"""
