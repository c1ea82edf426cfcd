"""Texts that would act in a page that took them for more than text."""

from __future__ import annotations

import itertools

_ACTS = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 1</script>",
    "</pre></dd><script>window.hacked = 1</script>",
    "</textarea><img src=x onerror='window.hacked = 1'>",
    "<svg onload=window.hacked=1>",
    "<img src=x onerror=window.hacked=1 //",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=hacked=1>",
    '" autofocus onfocus="window.hacked = 1',
    "' onmouseover='window.hacked = 1",
    "javascript:window.hacked=1",
    "data:text/html,<script>parent.hacked=1</script>",
    "<a href='javascript:window.hacked=1' id=x>press</a>",
    "<meta http-equiv=refresh content='0;url=https://evil.test'>",
    "<base href='https://evil.test/'>",
    "<link rel=stylesheet href='https://evil.test/x.css'>",
    "<style>body { display: none }</style>",
    "<form action='https://evil.test'><button>Approve once</button></form>",
    "{{ 7 * 7 }}{% for x in () %}{% endfor %}{{ visit.session.form_token }}",
    "${window.hacked = 1}`#{7*7}",
    "<!--<script>window.hacked = 1//-->",
    "<![CDATA[<script>window.hacked = 1</script>]]>",
    "&lt;script&gt;window.hacked = 1&lt;/script&gt;&#x3c;",
    "event: approval.ended\ndata: {}\n\n<script>hacked=1</script>",
    "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\n\r\n<script>hacked=1</script>",
)
_WRAPPED = (
    "{}",
    "\x1b[2J\x1b[1;31m{}\x1b]8;;https://evil.test\x07",
    "\u202e{}\u202c",
    "\u2066\u200b{}\u200d\ufeff",
    "\n{}\n\n",
    "\t {} \r\n",
    "\x00{}\x7f\x9b31m",
    "\U0001f600{}\U000e0041\ufe0f",
    "&quot;&#34;{}",
    "\u0627\u0644{}\u0301\u0301\u0301\u0301",
    "A\u0338{}\u2028\u2029",
    "[hidden: 40 characters, sha256 9947ca9f800d]{}",
    "{}" + "<div>" * 100,
    "{}".rjust(40, "\\"),
    "']]>{}--%>",
    "<{}",
    "&{}",
    "\"'`{}",
    "%3Cscript%3E{}",
    "\u3164\u115f{}",
)


def hostile_texts() -> list[str]:
    """Return 500 texts."""
    return [
        wrapped.replace("{}", act)
        for act, wrapped in itertools.product(_ACTS, _WRAPPED)
    ]
