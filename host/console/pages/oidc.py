"""Signing in with an issuer of OpenID Connect."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from toolcell.core import InvalidInputError

from ..accounts.oidc import OIDC, SIGN_IN_SECONDS, SignIn
from ..web.visit import ActionRefusedError, Visit
from .login import local_path


async def begin(visit: Visit) -> Response:
    """Send the person to the issuer."""
    visit.check_attempts(visit.address)
    url, begun = await _issuer(visit).begin(local_path(visit.query("next")))
    answer = RedirectResponse(url, status_code=303)
    # The issuer's page leads back, so the cookie cannot be strict.
    answer.set_cookie(
        _cookie(visit),
        begun.to_text(),
        max_age=SIGN_IN_SECONDS,
        secure=_is_secure(visit),
        httponly=True,
        samesite="lax",
    )
    return answer


async def finish(visit: Visit) -> Response:
    """Sign the person in for whom the issuer vouches, if the configuration has one."""
    issuer = _issuer(visit)
    visit.check_attempts(visit.address)
    begun = SignIn.from_text(visit.request.cookies.get(_cookie(visit), ""))
    try:
        subject = await issuer.finish(begun, visit.request.query_params)
    except InvalidInputError:
        visit.console.failures.add(visit.address)
        raise
    person = visit.console.people.of_subject(issuer.settings.issuer, subject)
    if person is None:
        raise ActionRefusedError(
            403,
            "the issuer knows you, but this console does not",
            hint=f"an admin adds {subject} to [console.oidc.people]",
        )
    page = visit.render("arrived.html", url=local_path(begun.next))
    page.delete_cookie(
        _cookie(visit), secure=_is_secure(visit), httponly=True, samesite="lax"
    )
    return await visit.sign_in(page, person.id)


def _issuer(visit: Visit) -> OIDC:
    if visit.console.oidc is None:
        raise ActionRefusedError(404, "no issuer is configured", hint="use a passkey")
    return visit.console.oidc


def _cookie(visit: Visit) -> str:
    return "__Host-toolcell-oidc" if _is_secure(visit) else "toolcell-oidc"


def _is_secure(visit: Visit) -> bool:
    return visit.console.origin.startswith("https:")
