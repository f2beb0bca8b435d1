"""Start a whole cluster on this machine, and everything that belongs to its processes."""

from ecstore.launcher.cluster import ClusterOptions, LocalCluster, local_cluster
from ecstore.launcher.nodes import NodeSettings

__all__ = ["ClusterOptions", "LocalCluster", "NodeSettings", "local_cluster"]
