"""The file with the tokens that a person's login gave, encrypted with AES-256-GCM."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shlex
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolcell.core import ConfigError
from toolcell.core.storage.file_locks import lock
from toolcell.core.storage.whole_files import written_whole
from toolcell.core.text.install_hint import install_hint
from toolcell.core.text.printable import escaped_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES, _NONCE_BYTES = 32, 12
_MAX_BYTES = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens that an issuer gave."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTokens:
    """The place of the tokens of one login. Several processes may share it."""

    file: Path
    """The file, in a folder that need not exist. It is named like the server, and that
    of an agent has more of a name."""

    key: str = field(repr=False)
    """32 bytes in base64, with which it is encrypted."""

    agent_id: str | None = None
    """The agent whose login it is; made by `of_agent`. None: it is of no agent."""

    def of_agent(self, agent_id: str) -> KeptTokens:
        """Return the place of the tokens of an agent's own login for the server."""
        named = hashlib.sha256(agent_id.encode("utf-8", "surrogatepass")).hexdigest()
        file = self.file.with_name(f"{self._server}@{named}")
        return replace(self, file=file, agent_id=agent_id)

    @property
    def hint(self) -> str:
        """The sentence that says how a person logs in."""
        command = f"toolcell tools login {self._server}"
        if self.agent_id is not None:
            command += f" --agent {escaped_line(shlex.quote(self.agent_id))}"
        return f"run `{command}` as the user of the host"

    @property
    def _server(self) -> str:
        return self.file.name.partition("@")[0]

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None, None]:
        """Keep others from changing the tokens during the block.

        Raises:
            ConfigError: The folder cannot be used.
        """
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(self.file.parent.stat())
            fd = await lock(self.file.with_suffix(".lock"))
        except OSError as error:
            raise self._unusable(error) from None
        try:
            yield
        finally:
            # A process that was forked meanwhile has the descriptor, too.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def read(self, purpose: str) -> Tokens | None:
        """Return the tokens; None: no one is logged in.

        Args:
            purpose: As it was given to `write`.

        Raises:
            ConfigError: They cannot be read, are of another user, or were written for
                another purpose or with another key.
        """
        cipher = self.cipher()
        from cryptography.exceptions import InvalidTag

        try:
            with open(self.file, "rb", opener=_open_own) as file:
                sealed = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None
        try:
            nonce, content = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            found = json.loads(cipher.decrypt(nonce, content, purpose.encode()))
            return Tokens(**found)
        except (InvalidTag, ValueError, TypeError):
            raise ConfigError(
                f"the login for {self._server} is of another key, issuer, client, "
                "URL or agent, or was changed",
                hint=self.hint,
            ) from None

    def write(self, tokens: Tokens, purpose: str) -> None:
        """Write the tokens in the place of those before, whole or not at all.

        Args:
            tokens: The tokens.
            purpose: What they are for. They cannot be read for another one.

        Raises:
            ConfigError: They cannot be written.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = json.dumps(asdict(tokens)).encode()
        sealed = nonce + self.cipher().encrypt(nonce, content, purpose.encode())
        try:
            with written_whole(self.file) as file:
                file.write(sealed)
        except OSError as error:
            raise self._unusable(error) from None

    async def forget(self) -> bool:
        """Remove the tokens; return False if there were none.

        Raises:
            ConfigError: They cannot be removed.
        """
        async with self.locked():
            try:
                self.file.unlink()
            except FileNotFoundError:
                return False
            except OSError as error:
                raise self._unusable(error) from None
            return True

    def cipher(self) -> AESGCM:
        """Return what encrypts the file.

        Raises:
            ConfigError: The key is none, or the package `cryptography` is missing.
        """
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigError(
                "the cryptography package is missing", hint=install_hint("mcp")
            ) from None
        try:
            key = b64decode(self.key, validate=True)
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise ConfigError(
                f"the key of a login is {_KEY_BYTES} bytes in base64",
                hint="make one: `openssl rand -base64 32`",
            )
        return AESGCM(key)

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"the login for {self._server} cannot be used: {error.strerror}",
            hint="run this as the user of the host, who must own "
            f"{self.file.parent.name} in its state.folder, on a disk with room",
        )


def _open_own(path: str, flags: int) -> int:
    """Open a file of this user. Raises OSError."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_owner(os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_owner(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError(0, "it is of another user")
