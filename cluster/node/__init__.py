"""The agent of a node: serves this machine's sandbox to drivers."""
