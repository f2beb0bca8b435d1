"""Its presence makes this folder importable: helpers that tests of several folders share stand beside it."""
