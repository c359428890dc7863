"""What holds for requests of browsers, whichever HTTP they come by: who is let in, which of them
are calls, and what is told to one that asks for a page of another origin (Fetch standard, 3.3)."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from barrage.transport.over_http2.grpc_headers import is_grpc_web
from barrage.transport.over_websocket.http_messages import WebAnswer

if TYPE_CHECKING:
    from barrage.transport.over_websocket.http_messages import WebRequest, WebSite
    from barrage.transport.over_websocket.origins import OriginRule

_METHOD = re.compile(r"/[\w.]+/\w+")
_HEADER_NAMES = re.compile(r"[\w, -]+", re.ASCII)
_ASKED_AGAIN_SECONDS = 600


def early_answer(request: WebRequest, origins: OriginRule, site: WebSite) -> WebAnswer | None:
    """The answer to a request that is not let in, or that asks whether another would be."""
    is_for_any_page = not is_call(request) and site.is_for_any_page(request)
    refusal = origins.refusal(request, is_for_any_page=is_for_any_page)
    if refusal is not None:
        return WebAnswer.text(HTTPStatus.FORBIDDEN, refusal)
    names = request.header("access-control-request-headers") or ""
    if (
        request.method == "OPTIONS"
        and request.header("access-control-request-method") == "POST"
        and _METHOD.fullmatch(request.path)
        and _HEADER_NAMES.fullmatch(names)
    ):
        return WebAnswer(
            status=HTTPStatus.NO_CONTENT,
            headers=(
                *for_other_origin(request, origins),
                ("access-control-allow-methods", "POST"),
                ("access-control-allow-headers", names),
                ("access-control-max-age", str(_ASKED_AGAIN_SECONDS)),
            ),
        )
    return None


def is_call(request: WebRequest) -> bool:
    """Whether it is a call of gRPC-web."""
    return is_grpc_web((request.header("content-type") or "").encode("latin-1"))


def for_other_origin(request: WebRequest, origins: OriginRule) -> tuple[tuple[str, str], ...]:
    """Headers by which a browser lets a page of another origin read the answer. Its cookies do not
    come along."""
    origin = origins.other_origin(request)
    if origin is None:
        return ()
    return (
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", "*"),
        ("vary", "origin"),
    )
