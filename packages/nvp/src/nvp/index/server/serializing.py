"""Pages as installers ask for them: in JSON, or in HTML."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any

from simple_repository import content_negotiation, errors, model, serializer
from starlette.requests import Request
from starlette.responses import Response

from .responses import HEADERS

__all__ = ["find_format", "respond_with"]

Page = model.ProjectDetail | model.ProjectList


def find_format(request: Request) -> content_negotiation.Format:
    """Return the form of pages that a client accepts.

    :raises UnsupportedSerialization: it accepts none.
    """
    accept = request.headers.get("accept", "")
    try:
        return content_negotiation.select_response_format(accept)
    except ValueError:
        raise errors.UnsupportedSerialization(ascii(accept[:100])) from None


def respond_with(page: Page, form: content_negotiation.Format) -> Response:
    """Return the response with a page."""
    if form is not content_negotiation.Format.JSON_V1 and isinstance(
        page, model.ProjectDetail
    ):
        page = _escaped(page)
    text = serializer.serialize(page, form)
    return Response(text, media_type=form.value, headers=HEADERS)


def _escaped(page: model.ProjectDetail) -> model.ProjectDetail:
    """Escape the text of a page for HTML.

    The HTML serializer of simple-repository 0.11.1 escapes ``data-requires-python``
    alone, and writes all other text of a page as it is.
    """
    return replace(
        page,
        name=html.escape(page.name),
        files=tuple(
            replace(
                file,
                filename=html.escape(file.filename),
                url=html.escape(file.url),
                yanked=html.escape(file.yanked)
                if isinstance(file.yanked, str)
                else file.yanked,
                hashes=_escaped_pairs(file.hashes),
                dist_info_metadata=_escaped_pairs(file.dist_info_metadata)
                if isinstance(file.dist_info_metadata, dict)
                else file.dist_info_metadata,
            )
            for file in page.files
        ),
    )


def _escaped_pairs(pairs: dict[str, Any]) -> dict[str, str]:
    return {html.escape(key): html.escape(str(text)) for key, text in pairs.items()}
