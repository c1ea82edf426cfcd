"""Serves resources and prompts of the host's MCP servers to its own clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from toolcell.core import ErrorInfo, InvalidInputError, ToolcellError
from toolcell.guard import called_by
from toolcell.tools import RunContext
from toolcell.tools.spi import MCPOffer, model_description

from ..runtime.host import Host
from .caller import Caller, CallerLookup, Context
from .results import error_envelope

Answer = TypeVar("Answer", bound=BaseModel)
_Page = types.PaginatedRequestParams | None


class OfferHandlers:
    """Answers requests about resources and prompts.

    Each caller is listed what the rules could allow to its agent. A call that needs a
    person waits for `server.approval_seconds`, and its request stays open after that.

    Args:
        host: The host; open.
        caller_of: Returns the caller of a request.
    """

    def __init__(self, host: Host, caller_of: CallerLookup) -> None:
        self._host = host
        self._caller_of = caller_of

    def by_option(self) -> dict[str, Any]:
        """Return the handlers, by the options of the MCP library's server.

        A host whose servers offer none of it has no handlers, and so declares nothing.
        """
        if not self._host.mcp_acts.offers_any:
            return {}
        return {
            "on_list_resources": self._list_resources,
            "on_list_resource_templates": self._list_templates,
            "on_read_resource": self._read,
            "on_list_prompts": self._list_prompts,
            "on_get_prompt": self._get_prompt,
        }

    async def _list_resources(
        self, ctx: Context, params: _Page
    ) -> types.ListResourcesResult:
        listed = await self._listed(ctx, params, "resource")
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    name=offer.address,
                    uri=offer.address,
                    description=model_description(author, offer),
                    mime_type=offer.media_type or None,
                )
                for author, offer in listed
            ]
        )

    async def _list_templates(
        self, ctx: Context, params: _Page
    ) -> types.ListResourceTemplatesResult:
        listed = await self._listed(ctx, params, "template")
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    name=offer.address,
                    uri_template=offer.address,
                    description=model_description(author, offer),
                    mime_type=offer.media_type or None,
                )
                for author, offer in listed
            ]
        )

    async def _list_prompts(
        self, ctx: Context, params: _Page
    ) -> types.ListPromptsResult:
        listed = await self._listed(ctx, params, "prompt")
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=offer.address,
                    description=model_description(author, offer),
                    arguments=[
                        types.PromptArgument(
                            name=name, description=description, required=required
                        )
                        for name, description, required in offer.arguments
                    ],
                )
                for author, offer in listed
            ]
        )

    async def _listed(
        self, ctx: Context, params: _Page, kind: Any
    ) -> list[tuple[str, MCPOffer]]:
        if params is not None and params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "there are no further pages")
        agent_id = self._caller_of(ctx).agent_id
        listed = await self._host.mcp_acts.listed(agent_id, kind)
        return [(f"MCP server {server}", offer) for server, offer in listed]

    async def _read(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        caller = self._caller_of(ctx)

        async def read() -> types.ReadResourceResult:
            contents = await self._host.mcp_acts.read(
                params.uri, agent_id=caller.agent_id, run=self._run(caller)
            )
            return types.ReadResourceResult.model_validate({"contents": contents})

        return await self._answer(caller, read)

    async def _get_prompt(
        self, ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        caller = self._caller_of(ctx)

        async def get() -> types.GetPromptResult:
            prompt = await self._host.mcp_acts.get_prompt(
                params.name,
                params.arguments or {},
                agent_id=caller.agent_id,
                run=self._run(caller),
            )
            return types.GetPromptResult.model_validate(prompt)

        return await self._answer(caller, get)

    def _run(self, caller: Caller) -> RunContext:
        return RunContext(
            run_id=caller.run_id,
            session=caller.run_id,
            approval_seconds=self._host.config.server.approval_seconds,
        )

    async def _answer(
        self, caller: Caller, ask: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Return an answer. Raises MCPError: it is refused, failed or is too large."""
        # A token is for this server alone.
        token = auth_context_var.set(None)
        try:
            with called_by(caller.name), self._host.active_calls.enter():
                answer = await ask()
                self._check_size(answer)
                return answer
        except ToolcellError as error:
            envelope = error_envelope(ErrorInfo.of(error))
            raise MCPError(
                types.INVALID_PARAMS, envelope["message"], envelope
            ) from error
        finally:
            auth_context_var.reset(token)
        raise MCPError(types.INTERNAL_ERROR, "the server stopped the request")

    def _check_size(self, answer: BaseModel) -> None:
        size = len(answer.__pydantic_serializer__.to_json(answer))
        most = self._host.config.server.max_result_bytes
        if size > most:
            raise InvalidInputError(
                f"it has {size} bytes, more than the {most} that are sent",
                hint="ask for another one, or raise server.max_result_bytes",
                details={"reason": "result_too_large", "bytes": size},
            )
