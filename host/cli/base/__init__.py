"""Options, the start and folders of files, for all commands."""
