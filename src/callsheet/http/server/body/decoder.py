"""Reads the body of a request as the route accepts it: JSON, a form or multipart, into the route's struct."""

from typing import Any, Self

import msgspec

from callsheet.core.model.strict_json import refuse_duplicate_keys
from callsheet.http.server.body.form import FormDecoder, parse_urlencoded
from callsheet.http.server.body.multipart import MultipartReader
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import FORM, JSON, JSON_ONLY, MULTIPART, Route
from callsheet.http.server.validation_errors import describe_validation_error
from callsheet.settings import HttpSettings

_JSON_TYPES = {"application/json", "application/json;charset=utf-8"}
_NAMES = {JSON: "JSON", FORM: "a form", MULTIPART: "multipart"}


class BodyReader:
    """Reads and decodes bodies of one route. Created once per route."""

    def __init__(self, route: Route, struct: type[Any]) -> None:
        self._accepts = route.body_types
        self._json_only = route.body_types == JSON_ONLY
        self._decoder = msgspec.json.Decoder(struct)
        self._form = FormDecoder(struct)
        self._required = any(field.required for field in msgspec.structs.fields(struct))

    @classmethod
    def for_route(cls, route: Route) -> Self | None:
        return None if route.request is None else cls(route, route.request)

    async def read(self, request: Request, settings: HttpSettings) -> Any:
        """Return the body as the route's struct; `request.body_max` limits its size."""
        if not self._json_only:
            media_type = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
            if media_type in self._accepts and media_type != JSON:
                return await self._read_form(request, settings, media_type)
        raw = await request.read_body()
        if raw or self._required:
            self._check_json_type(request, raw)
        return self._decode_json(raw)

    async def _read_form(self, request: Request, settings: HttpSettings, media_type: str) -> Any:
        if media_type == FORM:
            request.form = parse_urlencoded(await request.read_body(), settings)
        else:
            request.body_max = settings.multipart_body_bytes_max
            request.form = await MultipartReader(request, settings).read()
        return self._form.decode(request.form)

    def _check_json_type(self, request: Request, raw: bytes) -> None:
        if not raw and self._json_only:
            raise Problem(400, "body_required", "The request has no body. Send a JSON body.")
        content_type = (request.header(b"content-type") or "").lower().replace(" ", "").replace('"', "")
        if JSON not in self._accepts or content_type not in _JSON_TYPES:
            accepted = " or ".join(f"{_NAMES[one]}: Content-Type: {one}" for one in self._accepts)
            raise Problem(415, "unsupported_media_type", f"The Content-Type is not supported. Send {accepted}.")
        if not raw:
            raise Problem(400, "body_required", "The request has no body. Send one.")

    def _decode_json(self, raw: bytes) -> Any:
        try:
            content = self._decoder.decode(raw or b"{}")
            refuse_duplicate_keys(raw or b"{}")
        except msgspec.ValidationError as error:
            _check_json(raw)
            raise Problem(422, "invalid_body", describe_validation_error(error, self._decoder.type)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error) from None
        return content


def _check_json(raw: bytes) -> None:
    """Raise for a syntax error, which takes precedence over a wrong type that was found first."""
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(error) from None


def _not_json(error: Exception) -> Problem:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return Problem(400, "invalid_json", f"The body is not valid JSON: {reason}.")
