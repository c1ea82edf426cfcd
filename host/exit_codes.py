"""Exit codes of the `toolcell` command."""

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_COULD_NOT_RUN = 4
