"""Ray as the one that knows the machines: starts a node on each, and sees them go."""
