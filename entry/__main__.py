"""`python -m toolcell` is the `toolcell` command."""

from toolcell.host.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
