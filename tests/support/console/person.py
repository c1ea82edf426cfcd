"""A person who is signed in, without a browser."""

from __future__ import annotations

from typing import Any

import httpx2

from toolcell.guard import ApprovalRequest
from toolcell.host.operator.people import Role

from .served import Service


class Client:
    """A person who sends what a form of ours would.

    Args:
        service: The console.
        role: The role of the person.
        agents: The agents whose requests the person may answer. None: all.
        name: The name of the person.
    """

    def __init__(
        self,
        service: Service,
        role: Role = "approver",
        agents: tuple[str, ...] | None = None,
        name: str = "carl",
    ) -> None:
        cookies, self._token = service.signed_in(name, role, agents)
        [cookie] = cookies.items()
        self._url = service.url
        self._headers = {
            "Origin": service.url,
            "Sec-Fetch-Site": "same-origin",
            "Cookie": "=".join(cookie),
        }

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"{self._url}{path}", headers=self._headers, timeout=60)

    def page(self, request: ApprovalRequest) -> str:
        return self.get(f"/approvals/{request.id}").text

    def digest(self, request: ApprovalRequest, page: str | None = None) -> str:
        text = page or self.page(request)
        return text.partition('name="digest" value="')[2][:64]

    def post(self, path: str, **fields: Any) -> httpx2.Response:
        fields = {"form_token": self._token, **fields}
        return httpx2.post(
            f"{self._url}{path}", data=fields, headers=self._headers, timeout=60
        )
