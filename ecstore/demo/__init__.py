"""The demonstration: train on a cluster, kill nodes over REST meanwhile, prove that nothing was lost."""

from ecstore.demo.options import DemoOptions
from ecstore.demo.run import DemoResult, run_demo

__all__ = ["DemoOptions", "DemoResult", "run_demo"]
