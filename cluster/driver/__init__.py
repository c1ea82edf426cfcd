"""The caller's end: a sandbox whose cells are on the nodes of a cluster."""
