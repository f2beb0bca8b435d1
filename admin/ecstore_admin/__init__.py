"""The admin service: REST over a cluster, and supervision of the node processes of one machine."""
