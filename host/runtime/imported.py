"""Objects that a configuration names, by module and name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from toolcell.core import ConfigError


def imported(key: str, path: str) -> Any:
    """Return the object of `package.module:name`.

    Args:
        key: The key of the configuration, for the error.
        path: The module and the name.

    Raises:
        ConfigError: It cannot be imported, or is not there.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"{key}: {path} cannot be imported: {error}",
            hint="install its package, or name its folder in tools.folders",
        ) from error
    except AttributeError:
        raise ConfigError(
            f"{key}: {module} has no {name}",
            hint="write package.module:name, of what the module has",
        ) from None
