"""Exit codes of the `toolcell` command."""

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_COULD_NOT_RUN = 4
EXIT_BROKEN_PIPE = 141
"""Nobody reads the output any more; what a shell says of SIGPIPE."""
