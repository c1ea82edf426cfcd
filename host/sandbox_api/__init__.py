"""Serves sandboxes to the SDKs of E2B: control plane, processes, files and code."""
