"""Exit codes of the `toolcell` command."""

EXIT_LEFT_SOMETHING = 1
"""`toolcell clean` could not remove all that it found."""

EXIT_NOT_ALL_RUN = 1
"""`toolcell map` could not run some of the programs."""

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_COULD_NOT_RUN = 4
EXIT_WITHOUT_KEY = 5
"""A log verifies, but without a key, so whoever writes it could have forged it."""

EXIT_THREAD_FAILED = 1
EXIT_THREAD_DAMAGED = 1
"""`toolcell flow verify` found a thread that was changed."""

EXIT_CANCELLED = 3
EXIT_INTERRUPTED = 5
"""A thread waits for answers."""

EXIT_BROKEN_PIPE = 141
"""The reader of the output is gone; the code that shells give to SIGPIPE."""
