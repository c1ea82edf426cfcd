"""`python -m toolcell` is the `toolcell` command."""

from toolcell.host.cli.main import main

if __name__ == "__main__":
    main()
