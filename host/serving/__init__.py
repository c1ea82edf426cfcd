"""Serves the APIs of a host and its console, all from one process."""
