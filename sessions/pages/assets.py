"""The page itself: one document, its style and its modules, read once.

Nothing is loaded from elsewhere and nothing is built: the browser gets the files as they lie
here. The content security policy allows this server's own files and no inline script or style.
None of them holds data; what clients named themselves reaches the page as JSON only.
"""

from http import HTTPStatus
from pathlib import Path

from sessions.http.exchange import Call
from sessions.http.message import HttpResponse, http_error

_FOLDER = Path(__file__).parent / "dashboard_assets"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class Assets:
    """Every file of the page, by name."""

    def __init__(self) -> None:
        self._files = {
            path.name: _answer(path)
            for path in sorted(_FOLDER.rglob("*"))
            if path.is_file() and path.suffix in _TYPES
        }

    @property
    def names(self) -> list[str]:
        """Names of all files of the dashboard."""
        return list(self._files)

    def page(self) -> HttpResponse:
        """The document; the same for everyone."""
        return self._files["dashboard.html"]

    def show(self, call: Call) -> HttpResponse:
        """One of its files.

        Raises:
            ApiError: there is none of that name.
        """
        found = self._files.get(call.argument)
        if found is None:
            raise http_error(HTTPStatus.NOT_FOUND, "There is nothing at this path.")
        return found


def _answer(path: Path) -> HttpResponse:
    return HttpResponse(
        status=HTTPStatus.OK,
        content_type=_TYPES[path.suffix],
        body=path.read_bytes(),
        headers=_HEADERS,
    )
