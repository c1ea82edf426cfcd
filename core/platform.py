"""Says where toolcell does not run, before something else fails for it."""

try:
    import fcntl  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        "toolcell runs on Linux, and on macOS with Docker; on Windows use it in WSL 2"
    ) from None
