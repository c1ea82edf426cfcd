"""The one table of all pages and acts, in the order of the links at their head."""

from __future__ import annotations

from .base import live
from .base.pages import Act, Page
from .pages import (
    agents,
    audit,
    health,
    inbox,
    login,
    policies,
    request,
    runs,
    sessions,
)

TABLE: tuple[Page | Act, ...] = (
    Page("/", inbox.show, link="Inbox"),
    Act("/grants/{id}/revoke", inbox.revoke, role="approver"),
    Page("/approvals/{id}", request.show),
    Act("/approvals/{id}/approve", request.approve, role="approver"),
    Act("/approvals/{id}/deny", request.deny, role="approver"),
    Act("/approvals/{id}/open", request.open_hidden, role="approver", fresh=True),
    Act("/approvals/{id}/grant", request.grant, role="approver", fresh=True),
    Act("/approvals/{id}/edit", request.edit, role="approver", fresh=True),
    Act("/approvals/{id}/edited", request.approve_edited, role="approver", fresh=True),
    Page("/runs", runs.show, link="Runs"),
    Page("/runs/live/{number}", runs.show_live),
    Page("/runs/live/{number}/stream", runs.stream),
    Act("/runs/live/{number}/cancel", runs.cancel, role="operator"),
    Page("/runs/{number}", runs.show_record),
    Page("/runs/{number}/why", runs.show_why),
    Page("/sessions", sessions.show, link="Sessions"),
    Act("/sessions/{number}/interrupt", sessions.interrupt, role="operator"),
    Act("/sessions/{number}/close", sessions.close, role="operator"),
    Page("/agents", agents.show, link="Agents"),
    Page("/agents/{agent:path}", agents.show_one),
    Act("/agents/{agent:path}/reset", agents.reset, role="operator", fresh=True),
    Page("/audit", audit.show, link="Audit"),
    Act("/audit/verify", audit.verify, role="operator"),
    Act("/audit/head", audit.keep, role="operator"),
    Page("/audit/{number}", audit.show_one),
    Page("/policies", policies.show, link="Policies"),
    Act("/explain", policies.ask, role="viewer"),
    Page("/tools/{name:path}", policies.show_tool),
    Page("/health", health.show, link="Health"),
    Act("/health/doctor", health.examine, role="operator"),
    Page("/events", live.stream),
    Page("/login", login.show, role=None),
    Act("/login", login.sign_in, role=None),
    Page("/login/options", login.options, role=None),
    Act("/logout", login.sign_out, role="viewer"),
    Page("/join/{code}", login.show_link, role=None),
    Act("/join/{code}", login.join, role=None),
)
