"""Makes toolsets of the OpenAPI documents that the configuration names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from toolcell.core import ConfigError
from toolcell.tools import OpenAPIToolset
from toolcell.tools.spi import OpenAPIPins

from ..config.host_config import HostConfig

_log = logging.getLogger(__name__)


def listed_apis(config: HostConfig) -> list[OpenAPIToolset]:
    """Return the approved operations for display; no secret is read.

    Raises:
        ConfigError: The pins cannot be read.
    """
    shown = {
        reference: "not read"
        for settings in config.tools.openapi.values()
        for reference in settings.secrets.values()
    }
    return _apis(config, shown)


def make_apis(config: HostConfig, secrets: Mapping[str, Any]) -> list[OpenAPIToolset]:
    """Return the approved operations of all APIs; no document is read yet.

    Raises:
        ConfigError: The pins or a secret cannot be used.
    """
    known = {each: secret.get_secret_value() for each, secret in secrets.items()}
    apis = _apis(config, known)
    for toolset in apis:
        for name, reason in toolset.unusable.items():
            _log.warning("%s of the API %s is left out: %s", name, toolset.name, reason)
        if not toolset.tools:
            _log.warning(
                "no operation of the API %s is approved; see `toolcell tools pin`",
                toolset.name,
            )
    return apis


def offering_api(config: HostConfig, name: str) -> OpenAPIToolset:
    """Return a toolset that, once opened, has all operations, approved or not."""
    references = dict.fromkeys(config.tools.openapi[name].secrets.values(), "not read")
    return _api(config, name, None, references)


def _apis(config: HostConfig, secrets: Mapping[str, str]) -> list[OpenAPIToolset]:
    if not config.tools.openapi:
        return []
    pins = OpenAPIPins.load(config.tools.openapi_pins)
    return [_api(config, name, pins, secrets) for name in config.tools.openapi]


def _api(
    config: HostConfig, name: str, pins: OpenAPIPins | None, secrets: Mapping[str, str]
) -> OpenAPIToolset:
    settings = config.tools.openapi[name]
    document = settings.document or settings.url
    if document is None:
        raise ConfigError(f"the API {name} has no document", hint="name a file or URL")
    return OpenAPIToolset(
        name,
        document,
        settings.server,
        pins=pins,
        prefix=settings.prefix,
        operations=settings.operations,
        secrets={key: secrets[secret] for key, secret in settings.secrets.items()},
        networks=[str(network) for network in settings.networks],
        idempotent=settings.idempotent,
        timeout_seconds=settings.timeout_seconds,
        max_bytes=settings.max_bytes,
    )
