"""Parts of a message that a model sees: texts and pictures."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .models import FrozenModel, WholeText


class TextPart(FrozenModel):
    """A text."""

    model_config = ConfigDict(defer_build=True)

    type: Literal["text"] = "text"
    text: WholeText

    def to_openai_format(self) -> dict[str, Any]:
        """Return a content part of Chat Completions."""
        return {"type": "text", "text": self.text}

    def to_anthropic_format(self) -> dict[str, Any]:
        """Return a block of the Messages API."""
        return {"type": "text", "text": self.text}

    def as_text(self) -> TextPart:
        """Return the part itself."""
        return self


class ImagePart(FrozenModel):
    """A picture."""

    model_config = ConfigDict(defer_build=True)

    type: Literal["image"] = "image"
    mime: Literal["image/png", "image/jpeg"]
    data: str = Field(repr=False, pattern="^[A-Za-z0-9+/]+={0,2}$")
    """Its bytes in base 64."""

    def to_openai_format(self) -> dict[str, Any]:
        """Return a content part of Chat Completions."""
        url = f"data:{self.mime};base64,{self.data}"
        return {"type": "image_url", "image_url": {"url": url}}

    def to_anthropic_format(self) -> dict[str, Any]:
        """Return a block of the Messages API."""
        source = {"type": "base64", "media_type": self.mime, "data": self.data}
        return {"type": "image", "source": source}

    def as_text(self) -> TextPart:
        """Return a text that names the picture, where it cannot be sent or kept."""
        return TextPart(text=f"[{self.mime}: not sent]")


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
"""One part of what a model sees."""
