"""The web console: pages for the people who watch agents and answer for them.

A page is added in three steps:

1. Write `pages/NAME.py` with an `async def show(visit: Visit) -> Response` that returns
   `visit.render("NAME.html", ...)`. What it shows is in `visit.sources`; what is asked
   for in `visit.part("id")` and `visit.query("before")`; who asks is `visit.person`.
   Raise `ActionRefusedError(404, "...")` where there is nothing to show.
2. Write `templates/NAME.html`: `{% extends "base.html" %}`, the blocks `title` and
   `main`, and `{% import "parts.html" as parts with context %}` for its parts: forms,
   bars and times. Values are escaped and made visible by themselves; `|safe` and
   inline scripts, styles and handlers are never used, nor allowed by the browser.
3. Add `Page("/NAME", NAME.show, role="viewer", link="Name")` to `routes.TABLE`. It
   declares the role that the page takes, and the link at the head of all pages.

An action is a form: `{% call parts.form("/runs/7/kill", touch=True) %}`, with its
fields and a button; `Action("/runs/{id}/kill", runs.kill, role="operator", fresh=True)`
in the table; and an `async def kill(visit)` that reads `visit.form` and returns
`visit.go("/runs/7")`, after `await visit.record("...")`. `fresh` takes a touch of the
passkey within five minutes, for which `touch` of the form asks.

A page that is open keeps up by itself if a part of it has an `id` and names the events
that change it: `<section id="runs" data-live="call.started call.ended">`. The script
then reads the page again and replaces that part. `operator.events` has all types, and
`visit.sources.event_bus` publishes them. Lines that grow are
`<pre data-lines="/runs/7/stream">`: the events `line` of that address, each with a text
as JSON, are added to it as text, until an event `end`.

A request passes, in this order, `web.gate` (host, origin, form token, headers), the
role that `routes.TABLE` declares (`web.visit`), and the page.
"""
