"""The protocol; the only part of `cell` that the host imports, with kernel/seccomp."""
