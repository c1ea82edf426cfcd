"""A client of the console without a browser, signed in as somebody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser

import httpx2

from toolcell.host.operator.people import Role

from .served import Service

_OURS = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
_KNOWN = frozenset(
    "html head meta title link script body a header img nav form input span button p "
    "main div h1 h2 h3 section dl dt dd pre table thead tbody tr th td select option "
    "label details summary ul li code figure figcaption svg rect time mark article "
    "footer textarea fieldset legend wbr br b kbd path datalist".split()
)


_APART = frozenset("td th dt dd li summary".split())


class _Shape(HTMLParser):
    """The elements of a page, its attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts: list[str | None] = []
        self.acts: set[str | None] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag in _APART:
            self.text += " "
        self.attributes |= {name for name, _ in attrs}
        if tag == "form" and dict(attrs).get("method") == "post":
            self.acts.add(dict(attrs).get("action"))
        if tag == "a":
            self.links.append(dict(attrs).get("href") or "")
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))

    def handle_data(self, data: str) -> None:
        self.text += data


class Client:
    """A person at the console who has no scripts."""

    def __init__(self, service: Service, http: httpx2.Client, token: str) -> None:
        self._service = service
        self._http = http
        self._token = token
        self.acts: set[str | None] = set()
        """The acts that the last page offers."""
        self.links: list[str] = []
        """The addresses that it leads to."""

    def page(self, path: str, status: int = 200) -> str:
        """Return the text of a page; no text in it may have become markup."""
        answer = self._http.get(path, headers=_OURS)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        shape = _Shape(answer.text)
        assert shape.tags <= _KNOWN, shape.tags - _KNOWN
        assert shape.scripts == ["/static/console.js"]
        assert not [
            attribute for attribute in shape.attributes if attribute.startswith("on")
        ]
        assert "style" not in shape.attributes
        self.acts = shape.acts - {"/logout"}
        self.links = shape.links
        return shape.text

    def act(self, path: str, status: int = 303, **fields: str) -> httpx2.Response:
        """Send a form of ours."""
        return self._sent(path, status, fields)

    def _sent(self, path: str, status: int, fields: dict[str, str]) -> httpx2.Response:
        answer = self._http.post(
            path,
            data={"form_token": self._token, **fields},
            headers={**_OURS, "Origin": self._service.url},
        )
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer

    def lines(self, path: str) -> Iterator[str]:
        """Yield the lines of a stream."""
        headers = _OURS | {"Sec-Fetch-Mode": "cors"}
        with self._http.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200
            yield from answer.iter_lines()


@contextmanager
def signed_in(service: Service, role: Role = "operator") -> Iterator[Client]:
    """Sign somebody in, whose name is that of the role."""
    cookies, token = service.signed_in(role, role)
    with httpx2.Client(base_url=service.url, cookies=cookies, timeout=60) as http:
        yield Client(service, http, token)
