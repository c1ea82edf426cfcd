"""The link between a driver and a node: certificates, hand-shake, messages."""
