"""The settings of nodes, sealed: Ray keeps arguments of actors in its store."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint
from toolcell.sandbox import SandboxConfig

from ..node.health import CHECK_SECONDS
from ..wire.protocol import LOST_SECONDS

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class NodeSettings(BaseModel):
    """The settings that each node of a Ray cluster is started with."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    sandbox: SandboxConfig
    """The sandbox of a node; the resource `toolcell` of its machine is its
    `max_concurrency`."""

    lost_seconds: float = LOST_SECONDS
    check_seconds: float = CHECK_SECONDS

    def sealed(self, token: str) -> bytes:
        """Return the settings so that only holders of Ray's token can read them."""
        return _box(token).encrypt(self.model_dump_json(exclude_unset=True).encode())

    def digest(self, token: str) -> str:
        """Return what tells these settings from others, and nothing of them."""
        text = self.model_dump_json(exclude_unset=True).encode()
        return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()

    @classmethod
    def unsealed(cls, data: bytes, token: str) -> NodeSettings:
        """Return the settings that were sealed with this token."""
        return cls.model_validate_json(_box(token).decrypt(data))


def _box(token: str) -> Fernet:
    try:
        from cryptography.fernet import Fernet
    except ImportError:
        raise ConfigError(
            "the cryptography package is missing", hint=install_hint("cluster-ray")
        ) from None
    key = hmac.new(token.encode(), b"toolcell settings 1", hashlib.sha256).digest()
    return Fernet(base64.urlsafe_b64encode(key))
