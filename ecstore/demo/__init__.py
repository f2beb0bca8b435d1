"""The demonstration: train on a cluster, kill nodes over REST meanwhile, prove that nothing was lost."""

from ecstore.demo.options import DemoOptions
from ecstore.demo.run import run_demo

__all__ = ["DemoOptions", "run_demo"]
