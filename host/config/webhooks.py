"""The tables `[[webhooks]]` of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import Field, IPvAnyNetwork, model_validator

from toolcell.core.addresses import is_loopback_or_https
from toolcell.core.secrets import SecretReference

from .base import Model

WebhookEvent = Literal["approval.asked", "approval.answered", "approval.expired"]


class WebhookConfig(Model):
    """A URL that gets signed messages about requests for approval."""

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9]+([_-][A-Za-z0-9]+)*$", max_length=32)
    ]
    """Its name, in logs and in the list of messages to send."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s#]*)?$")]
    """The URL, https or on the loopback address. Redirects are not followed."""

    secret: SecretReference
    """The secret that messages are signed with: `whsec_` and 24 to 64 bytes in
    base64, as Standard Webhooks write it."""

    events: Annotated[tuple[WebhookEvent, ...], Field(min_length=1)] = get_args(
        WebhookEvent
    )
    """The events that it gets."""

    arguments: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Arguments of calls that are in the messages, by name, with likely secrets hidden.
    Others are not."""

    networks: tuple[IPvAnyNetwork, ...] = ()
    """Addresses that may be reached although they are neither public nor loopback, such
    as `10.1.0.0/16`."""

    @model_validator(mode="after")
    def _private(self) -> Self:
        if not is_loopback_or_https(self.url):
            raise ValueError("a webhook is of https, or on a loopback address")
        return self

    @property
    def is_loopback(self) -> bool:
        """True if it is plain HTTP, and so on the loopback address."""
        return urlsplit(self.url).scheme == "http"
