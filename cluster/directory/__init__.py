"""The places where drivers find the nodes of a cluster."""
