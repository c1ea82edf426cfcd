"""Rules for packages: how one is named, and which may be installed."""

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from toolcell.core.addresses import is_loopback_or_https
from toolcell.core.secrets import SecretReference

from .base import SettingsModel
from .host_rules import DEFAULT_PORTS, read_authority

_VERSION = r"(===?|~=|!=|<=?|>=?) ?[A-Za-z0-9.*+!_-]{1,64}"
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
    r"(\[[A-Za-z0-9._, -]{1,200}\])?"
    rf"( ?{_VERSION}( ?, ?{_VERSION})*)?"
)

# npm takes what is no version for a tag, and a name that ends as an archive for a file.
_NPM_PART = r"[0-9]{1,15}"
_NPM_WORDS = r"[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*"
_NPM_VERSION = (
    r"(?!.*\.(?i:tgz|tar|tar\.gz)$)(?!.{65})(\^|~|>=|<=|=|<|>)?"
    rf"{_NPM_PART}(\.[xX](\.[xX])?"
    rf"|\.{_NPM_PART}(\.[xX]|\.{_NPM_PART}(-{_NPM_WORDS})?(\+{_NPM_WORDS})?)?)?"
)
_NPM = re.compile(
    r"(?P<name>(@[A-Za-z0-9_-][A-Za-z0-9._-]{0,98}/)?[A-Za-z0-9_-][A-Za-z0-9._-]{0,98})"
    rf"(@(?P<version>{_NPM_VERSION}))?"
)

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Hosts whose connections do not leave it."""


def _written_as_one(text: str) -> str:
    if not _REQUIREMENT.fullmatch(text):
        raise ValueError(
            "write a name, extras and versions, such as 'numpy==2.1.*'; no addresses, "
            "paths, markers or options"
        )
    return text


Requirement = Annotated[str, Field(max_length=400), AfterValidator(_written_as_one)]
"""A package in the form that pip takes, such as `numpy==2.1.*`."""


def _written_for_npm(text: str) -> str:
    if not _NPM.fullmatch(text):
        raise ValueError(
            "write a name and a version, such as 'lodash@4.17.21' or '@scope/name@^2'; "
            "no addresses, paths, aliases or tags"
        )
    return text


NpmRequirement = Annotated[str, Field(max_length=300), AfterValidator(_written_for_npm)]
"""A package of npm with its version, such as `lodash@4.17.21`."""


def npm_dependency(requirement: str) -> tuple[str, str]:
    """Return the name and the version of a package of npm; `*` is any version."""
    found = _NPM.fullmatch(requirement)
    assert found is not None
    return found["name"], found["version"] or "*"


def npm_origin(address: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address of npm, in one spelling.

    Raises:
        ValueError: It has none.
    """
    parts = urlsplit(address)
    host, port = read_authority(parts.netloc, DEFAULT_PORTS.get(parts.scheme))
    return parts.scheme, host, port


def _allowed(text: str) -> str:
    return text if text == "*" else _written_as_one(text)


_PackageName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=100)
]


class PackageRules(SettingsModel):
    """Rules for packages: the allowed ones, their index and their limits.

    Packages are fetched and unpacked by uv on this machine, outside of any cell,
    from wheels, with their hashes checked; nothing of them is executed there.
    """

    allow: tuple[Annotated[str, AfterValidator(_allowed)], ...] = ()
    """Packages that runs and sessions may ask for, by name. Versions written here bind
    all requests and all dependencies. `*` allows every name. Dependencies of an
    allowed package are allowed. Default: none."""

    build: Annotated[tuple[_PackageName, ...], Field(max_length=64)] = ()
    """Packages that are built from their source instead, by name, at most 64; each in
    its own cell without network, mounts and `env`, with 2 GiB of memory. The
    packages that a build needs come as wheels. Default: none; a package without a
    wheel is refused."""

    index_url: Annotated[str, Field(pattern=r"^(https?|file)://")] | None = None
    """The package index, in which a user may be, such as
    `https://reader@packages.example.org/simple`; None takes uv's own settings, by
    default the public one."""

    index_password: SecretReference | None = None
    """The place of the password of `index_url`: `env:NAME` or `file:/path`, read once,
    when the sandbox opens. It goes to the scheme, host and port of `index_url` alone,
    which is `https://` or on this machine."""

    npm_registry: Annotated[
        str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")
    ] = "https://registry.npmjs.org"
    """The registry of packages of npm, without a password, `https://` or on this
    machine. The cell that installs them reaches its host alone, at all addresses that
    it has when the sandbox opens."""

    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 600.0
    """Seconds for finding, and again for fetching, a set of packages, and for building
    each source. When it is reached uv, or the build, is stopped and PackageError is
    raised."""

    layer_mib: Annotated[int, Field(ge=1, le=1_048_576)] = 4096
    """MiB of the files of one installed set. When it is reached nothing is kept and
    PackageError is raised; uv is stopped before it has written three times as much
    and 256 MiB. It holds for a fetched source and for a wheel built from one, too,
    which have 256 MiB at most."""

    folder: Annotated[str, Field(pattern=r"^/")] | None = None
    """The folder of installed sets, an absolute path; None takes the folder
    `toolcell/packages` of the user's cache."""

    @field_validator("npm_registry")
    @classmethod
    def _cannot_be_changed_on_the_way(cls, value: str) -> str:
        npm_origin(value)
        if not is_loopback_or_https(value):
            raise ValueError("a registry is https://, or on this machine")
        return value

    @field_validator("index_url")
    @classmethod
    def _without_password(cls, value: str | None) -> str | None:
        if value and urlsplit(value).password is not None:
            raise ValueError("a password is named in index_password, never written")
        return value

    @model_validator(mode="after")
    def _password_goes_to_one_host(self) -> Self:
        url = urlsplit(self.index_url or "")
        is_here = url.scheme == "http" and url.hostname in _THIS_MACHINE
        if self.index_password and not (url.scheme == "https" or is_here):
            raise ValueError("index_password needs an index_url of https://")
        return self
