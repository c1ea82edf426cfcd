"""Where drivers find the nodes of a cluster."""
