"""Forms: fields, files in temporary storage, and their conversion into a struct."""

from typing import IO, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec.inspect import ListType, StructType, Type, UnionType, type_info

from callsheet.core.model.plural import pluralize
from callsheet.http.server.problems import Problem
from callsheet.http.server.validation_errors import describe_validation_error
from callsheet.settings import HttpSettings


class UploadedFile:
    """A file of a multipart form. Use it as the type of a struct's field; it is closed after the response."""

    __slots__ = ("file", "filename", "media_type", "size")

    def __init__(self, filename: str, media_type: str, file: IO[bytes]) -> None:
        self.filename = filename
        """As the client sent it: do not use it as a path."""
        self.media_type = media_type
        """As the client sent it: check the bytes before you rely on it."""
        self.file = file
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        """Read from the current position, at first the start. Call it in a thread: the file may be on disk."""
        return self.file.read(size)


class Form:
    """Fields and files in the order of the body."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: list[tuple[str, str | UploadedFile]] = []

    def close(self) -> None:
        """Delete the temporary files."""
        for _, value in self.fields:
            if isinstance(value, UploadedFile):
                value.file.close()


def parse_urlencoded(raw: bytes, settings: HttpSettings) -> Form:
    """Parse an application/x-www-form-urlencoded body."""
    try:
        text = raw.decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict",
            max_num_fields=settings.form_fields_max,
        )  # fmt: skip
    except ValueError as error:
        if "fields" in str(error):  # parse_qsl raises ValueError for both
            raise too_many_fields(settings) from None
        raise Problem(
            400, "invalid_form", "The body is not valid application/x-www-form-urlencoded. Encode the fields again."
        ) from None
    form = Form()
    for name, value in pairs:
        if len(value.encode()) > settings.form_field_bytes_max:
            raise field_too_large(name, settings.form_field_bytes_max)
        form.fields.append((name, value))
    return form


class FormDecoder:
    """Converts forms into one struct: a repeated field is a list, a field with files has the type `UploadedFile`."""

    def __init__(self, struct: type[Any]) -> None:
        self._struct = struct
        info = type_info(struct)
        fields = info.fields if isinstance(info, StructType) else ()
        self._lists = frozenset(field.encode_name for field in fields if _is_list(field.type))

    def decode(self, form: Form) -> Any:
        values: dict[str, Any] = {}
        for name, value in form.fields:
            if name in self._lists:
                values.setdefault(name, []).append(value)
            elif name in values:
                raise Problem(422, "invalid_body", f"The field `{_shorten(name)}` is repeated. Send it once.")
            else:
                values[name] = value
        try:
            return msgspec.convert(values, self._struct, strict=False, dec_hook=_accept_file)
        except msgspec.ValidationError as error:
            raise Problem(422, "invalid_body", describe_validation_error(error, self._struct)) from None


def too_many_fields(settings: HttpSettings) -> Problem:
    most = pluralize(settings.form_fields_max, "field")
    return Problem(413, "form_too_large", f"The form has more than {most}. Send fewer.", {"connection": "close"})


def field_too_large(name: str, limit: int) -> Problem:
    return Problem(
        413, "form_too_large", f"The field `{_shorten(name)}` is larger than {pluralize(limit, 'byte')}.",
        {"connection": "close"},
    )  # fmt: skip


def _shorten(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:80]}…"  # noqa: PLR2004 - the message stays short


def _is_list(node: Type) -> bool:
    if isinstance(node, UnionType):
        return any(isinstance(member, ListType) for member in node.types)
    return isinstance(node, ListType)


def _accept_file(kind: type[Any], value: Any) -> Any:
    """Accept a file where the struct expects one; msgspec checks all other values."""
    if isinstance(value, kind):
        return value
    raise ValueError("Expected a file, got text")
