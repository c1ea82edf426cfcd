"""The one table of all pages and acts, in the order of the links at their head."""

from __future__ import annotations

from .base import live
from .base.pages import Act, Page
from .pages import inbox, login

TABLE: tuple[Page | Act, ...] = (
    Page("/", inbox.show, link="Inbox"),
    Page("/events", live.stream),
    Page("/login", login.show, role=None),
    Act("/login", login.sign_in, role=None),
    Page("/login/options", login.options, role=None),
    Act("/logout", login.sign_out, role="viewer"),
    Page("/join/{code}", login.show_link, role=None),
    Act("/join/{code}", login.join, role=None),
)
