"""Signing in and out, and the one-time links with which people register a passkey."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse, Response

from toolcell.core import InvalidInputError, ToolcellError

from ...operator.people import PasskeyLink, check_name
from ..web.gate import cookie_name
from ..web.visit import ActionRefusedError, Visit, touch_purpose

_LOGIN = "login"


async def show(visit: Visit) -> Response:
    """Show how to sign in, unless the person is."""
    url = local_path(visit.query("next"))
    if visit.session is not None:
        return visit.go(url)
    return visit.render("login.html", next=url, oidc=visit.console.oidc)


async def options(visit: Visit) -> Response:
    """Answer with the options of a proof as JSON, for the script."""
    purpose, person_id = _LOGIN, None
    if visit.session is not None and visit.query("for") == "touch":
        purpose, person_id = touch_purpose(visit.session), visit.person.id
    made = visit.console.passkeys.request_options(purpose, person_id)
    return PlainTextResponse(made, media_type="application/json")


async def sign_in(visit: Visit) -> Response:
    """Sign the person in whose passkey made the proof."""
    console, proof = visit.console, visit.form.get("proof", "")
    key = console.passkeys.key_of(proof)
    tried = [visit.address, *([] if key is None else [key.person_id])]
    for sender in tried:
        visit.check_attempts(sender)
    try:
        name = console.passkeys.prove(_LOGIN, proof)
    except InvalidInputError as error:
        for sender in tried:
            console.failures.add(sender)
        raise ActionRefusedError(403, error.message, hint=error.hint) from None
    url, used = local_path(visit.form.get("next", "")), None if key is None else key.id
    if used is not None and console.vouching.take_news(name, used):
        url = "/people?news=passkey"
    return await visit.sign_in(visit.go(url), name, used)


async def sign_out(visit: Visit) -> Response:
    """End the session."""
    assert visit.session is not None
    visit.console.sessions.close(visit.session.id)
    answer = visit.go("/login")
    answer.delete_cookie(
        cookie_name(visit.console.origin),
        secure=visit.console.origin.startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    return answer


async def show_link(visit: Visit) -> Response:
    """Show a one-time link, which using it alone uses up: others may look at it."""
    code = visit.part("code")
    link = _link(visit, code)
    made = visit.console.passkeys.creation_options(
        _join_purpose(code), link.person_id or ""
    )
    return visit.render("join.html", link=link, code=code, options=made)


async def join(visit: Visit) -> Response:
    """Register the passkey of a person with a one-time link, and sign in."""
    code = visit.part("code")
    link = _link(visit, code)
    name = link.person_id or check_name(visit.form.get("name", ""))
    if name in {policy.agent_id for policy in visit.sources.config.all_policies()}:
        raise InvalidInputError(
            f"{name} is an agent", hint="an agent answers nothing: choose another name"
        )
    try:
        key = visit.console.passkeys.register(
            _join_purpose(code), name, visit.form.get("proof", "")
        )
    except ToolcellError:
        visit.console.failures.add(visit.address)
        raise
    person = visit.console.people.join(code, name, key)
    return await visit.sign_in(visit.go("/"), person.id, key.id)


def _link(visit: Visit, code: str) -> PasskeyLink:
    visit.check_attempts(visit.address)
    link = visit.console.people.link(code)
    if link is None or (link.local and not _is_loopback(visit.address)):
        # A page elsewhere may send a person here, which is no attempt of the person.
        if visit.request.headers.get("sec-fetch-site", "none") == "none":
            visit.console.failures.add(visit.address)
        raise ActionRefusedError(
            404,
            "this link is good no longer",
            hint="a link is good once, and for a short time; ask for a new one",
        )
    return link


def _join_purpose(code: str) -> str:
    return f"join {code}"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def local_path(path: str) -> str:
    """Return a path of our own pages to go on to; `/` for anything else."""
    parts = urlsplit(path)
    odd = not path.isprintable() or not path.isascii() or "\\" in path
    ours = path.startswith("/") and not path.startswith("//") and not odd
    return path if ours and not parts.scheme and not parts.netloc else "/"
