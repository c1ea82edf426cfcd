"""What people and clients see and do at a host that runs, without a word of HTTP."""
