"""The services of the API: control, processes, files, code, ports and snapshots."""
