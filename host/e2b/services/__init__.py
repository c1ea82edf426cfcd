"""What the API serves: control plane, processes, files, code, ports and snapshots."""
