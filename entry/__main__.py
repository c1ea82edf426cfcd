"""`python -m toolcell` is the `toolcell` command."""

from toolcell.host.cli import main

if __name__ == "__main__":
    main()
