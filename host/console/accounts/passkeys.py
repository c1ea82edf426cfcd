"""Passkeys: the options that browsers get, and the proof that they send back.

A challenge is signed and names its purpose, so nothing has to be stored for people who
never finish; a challenge that was met is remembered until it expires.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
from collections.abc import Callable
from time import time
from typing import Any
from urllib.parse import urlsplit

import webauthn
from webauthn.helpers import parse_client_data_json
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from toolcell.core import InvalidInputError
from toolcell.core.text.strict_json import read_json

from ...operator.people import Passkey, People

CHALLENGE_SECONDS = 300.0
"""Seconds that a person has to answer a challenge. When it is reached the proof is
refused, and the page makes a new challenge."""

MAX_PROOF_CHARACTERS = 16_384
"""Characters of a proof. When it is reached it is refused, unread."""

_NONCE_BYTES = 16


class Passkeys:
    """Registers passkeys, and proves people by them.

    Args:
        people: Has the passkeys.
        origin: The address of the console, which each proof has to name.
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(
        self, people: People, origin: str, *, clock: Callable[[], float] = time
    ) -> None:
        self._people = people
        self._origin = origin
        self._domain = urlsplit(origin).hostname or ""
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._met: dict[bytes, float] = {}

    def creation_options(self, purpose: str, name: str) -> str:
        """Return the options for a new passkey as JSON.

        Args:
            purpose: The purpose, which `register` has to name, too.
            name: The name of the person, as the authenticator shows it.
        """
        known = [] if not name else self._people.passkeys(name)
        options = webauthn.generate_registration_options(
            rp_id=self._domain,
            rp_name="toolcell",
            user_name=name or "toolcell",
            user_id=secrets.token_bytes(16),
            challenge=self._challenge(purpose),
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED,
                user_verification=UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=[PublicKeyCredentialDescriptor(k.id) for k in known],
        )
        return webauthn.options_to_json(options)

    def request_options(self, purpose: str, person_id: str | None = None) -> str:
        """Return the options for a proof as JSON.

        Args:
            purpose: The purpose, which `prove` has to name, too.
            person_id: The person whose passkeys are asked for. None: any.
        """
        known = [] if person_id is None else self._people.passkeys(person_id)
        options = webauthn.generate_authentication_options(
            rp_id=self._domain,
            challenge=self._challenge(purpose),
            allow_credentials=[PublicKeyCredentialDescriptor(k.id) for k in known],
            user_verification=UserVerificationRequirement.REQUIRED,
        )
        return webauthn.options_to_json(options)

    def register(self, purpose: str, person_id: str, proof: str) -> Passkey:
        """Return the new passkey of a proof; it is not stored.

        Raises:
            InvalidInputError: The proof does not hold.
        """
        try:
            found = webauthn.verify_registration_response(
                credential=_read(proof),
                expected_challenge=self._challenge_of(proof, purpose),
                expected_rp_id=self._domain,
                expected_origin=self._origin,
                require_user_verification=True,
            )
        except WebAuthnException:
            raise _refused() from None
        return Passkey(
            id=found.credential_id,
            person_id=person_id,
            public_key=found.credential_public_key,
            uses=found.sign_count,
            created_at=self._clock(),
            used_at=None,
        )

    def key_of(self, proof: str) -> Passkey | None:
        """Return the passkey that a proof names; nothing is proved by it."""
        try:
            key_id = webauthn.helpers.base64url_to_bytes(str(_read(proof).get("id")))
        except (InvalidInputError, ValueError):
            return None
        return self._people.passkey(key_id)

    def prove(self, purpose: str, proof: str) -> str:
        """Return the name of the person whose passkey made a proof.

        Raises:
            InvalidInputError: The proof does not hold, or the passkey is not known.
        """
        key = self.key_of(proof)
        if key is None:
            raise _refused()
        try:
            found = webauthn.verify_authentication_response(
                credential=_read(proof),
                expected_challenge=self._challenge_of(proof, purpose),
                expected_rp_id=self._domain,
                expected_origin=self._origin,
                credential_public_key=key.public_key,
                credential_current_sign_count=key.uses,
                require_user_verification=True,
            )
        except WebAuthnException:
            raise _refused() from None
        self._people.use_passkey(key.id, found.new_sign_count)
        return key.person_id

    def _challenge(self, purpose: str) -> bytes:
        end = struct.pack(">d", self._clock() + CHALLENGE_SECONDS)
        head = secrets.token_bytes(_NONCE_BYTES) + end
        return head + self._signature(head, purpose)

    def _signature(self, head: bytes, purpose: str) -> bytes:
        return hmac.digest(self._key, head + purpose.encode(), "sha256")

    def _challenge_of(self, proof: str, purpose: str) -> bytes:
        """Return the challenge that a proof answers, if it is ours, once."""
        try:
            data = webauthn.helpers.base64url_to_bytes(
                _read(proof)["response"]["clientDataJSON"]
            )
            challenge = parse_client_data_json(data).challenge
        except (LookupError, TypeError, ValueError, WebAuthnException):
            raise _refused() from None
        head, signature = challenge[: _NONCE_BYTES + 8], challenge[_NONCE_BYTES + 8 :]
        same = hmac.compare_digest(signature, self._signature(head, purpose))
        now = self._clock()
        self._met = {each: end for each, end in self._met.items() if end > now}
        if not same or head in self._met:
            raise _refused()
        [end] = struct.unpack(">d", head[_NONCE_BYTES:])
        if end <= now:
            raise InvalidInputError("this took too long", hint="try again")
        self._met[head] = end
        return challenge


def _read(proof: str) -> dict[str, Any]:
    if len(proof) > MAX_PROOF_CHARACTERS:
        raise _refused()
    try:
        found = read_json(proof)
        json.dumps(found)
    except ValueError:
        raise _refused() from None
    if not isinstance(found, dict):
        raise _refused()
    return found


def _refused() -> InvalidInputError:
    return InvalidInputError(
        "this passkey does not open the console",
        hint="use one that is registered here, or ask an admin for a link",
    )
