"""The one table of all pages and actions, in the order of the links at their head."""

from __future__ import annotations

from .accounts.oidc import CALLBACK
from .pages import (
    agents,
    audit,
    health,
    inbox,
    login,
    oidc,
    people,
    policies,
    request,
    runs,
    sessions,
)
from .web import live
from .web.visit import Action, Page

TABLE: tuple[Page | Action, ...] = (
    Page("/", inbox.show, link="Inbox"),
    Page("/waiting", inbox.count),
    Action("/grants/{id}/revoke", inbox.revoke, role="approver"),
    Page("/approvals/{id}", request.show),
    Action("/approvals/{id}/approve", request.approve, role="approver"),
    Action("/approvals/{id}/deny", request.deny, role="approver"),
    Action("/approvals/{id}/open", request.open_hidden, role="approver", fresh=True),
    Action("/approvals/{id}/grant", request.grant, role="approver", fresh=True),
    Action("/approvals/{id}/edit", request.edit, role="approver", fresh=True),
    Action(
        "/approvals/{id}/edited", request.approve_edited, role="approver", fresh=True
    ),
    Page("/runs", runs.show, link="Runs"),
    Page("/runs/live/{number}", runs.show_live),
    Page("/runs/live/{number}/stream", runs.stream),
    Action("/runs/live/{number}/cancel", runs.cancel, role="operator"),
    Page("/runs/export", runs.export_records),
    Page("/runs/pictures/{sha256}", runs.show_picture),
    Page("/runs/{number}", runs.show_record),
    Page("/runs/{number}/why", runs.show_why),
    Page("/sessions", sessions.show, link="Sessions"),
    Action("/sessions/{number}/interrupt", sessions.interrupt, role="operator"),
    Action("/sessions/{number}/close", sessions.close, role="operator"),
    Page("/agents", agents.show, link="Agents"),
    Page("/agents/{agent:path}", agents.show_one),
    Action("/agents/{agent:path}/reset", agents.reset, role="operator", fresh=True),
    Page("/audit", audit.show, link="Audit"),
    Action("/audit/verify", audit.verify, role="operator"),
    Action("/audit/head", audit.keep, role="operator"),
    Page("/audit/export", audit.export_log),
    Page("/audit/{number}", audit.show_one),
    Page("/policies", policies.show, link="Policies"),
    Action("/explain", policies.ask, role="viewer"),
    Page("/tools/{name:path}", policies.show_tool),
    Page("/health", health.show, link="Health"),
    Action("/health/doctor", health.examine, role="operator"),
    Page("/people", people.show, link="People"),
    Action("/people/invite", people.invite, role="admin", fresh=True),
    Action("/people/passkeys", people.add_passkey, role="viewer"),
    Action("/people/passkeys/remove", people.remove_passkey, role="viewer", fresh=True),
    Action("/people/sessions/{id}/end", people.end_session, role="viewer"),
    Action(
        "/people/invitations/{id}/remove", people.take_back, role="admin", fresh=True
    ),
    Action("/people/{id}/role", people.set_role, role="admin", fresh=True),
    Action("/people/{id}/remove", people.remove, role="admin", fresh=True),
    Page("/events", live.stream),
    Page("/login", login.show, role=None),
    Action("/login", login.sign_in, role=None),
    Page("/login/options", login.options, role=None),
    Page("/oidc/begin", oidc.begin, role=None),
    Page(CALLBACK, oidc.finish, role=None),
    Action("/logout", login.sign_out, role="viewer"),
    Page("/join/{code}", login.show_link, role=None),
    Action("/join/{code}", login.join, role=None),
)
