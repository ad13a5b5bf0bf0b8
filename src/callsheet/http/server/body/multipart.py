"""Reads multipart/form-data as it arrives, with limits for parts, fields and files. Files are stored temporarily."""

import asyncio
import errno
from email.message import Message
from email.utils import collapse_rfc2231_value
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, cast

from callsheet.core.model.plural import pluralize
from callsheet.http.server.body.form import Form, UploadedFile, field_too_large, too_many_fields
from callsheet.http.server.problems import Problem, unavailable
from callsheet.http.server.request import Request
from callsheet.settings import HttpSettings

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartParser

_CLOSE = {"connection": "close"}
_HEADERS_PER_PART_MAX = 8


class _ActiveReaders:
    """The number of multipart bodies that this process reads at once. Its limit bounds the temporary files."""

    count = 0


class MultipartReader:
    """Reads one body."""

    def __init__(self, request: Request, settings: HttpSettings) -> None:
        self._request = request
        self._settings = settings
        self._form = Form()
        self._header_name = self._header_value = b""
        self._header_bytes = 0
        self._headers = Message()
        self._name = ""
        self._text = bytearray()
        self._file: UploadedFile | None = None
        self._unwritten: list[tuple[UploadedFile, bytes]] = []
        self._ended = False

    async def read(self) -> Form:
        """Return the form; the caller closes it."""
        if _ActiveReaders.count >= self._settings.multipart_bodies_max:
            raise unavailable("This server has reached its limit of multipart bodies")
        self._request.check_body_headers()
        _ActiveReaders.count += 1
        try:
            async with asyncio.timeout(self._settings.multipart_timeout_seconds):
                return await self._read_parts()
        except TimeoutError:
            limit = pluralize(self._settings.multipart_timeout_seconds, "second")
            raise Problem(408, "body_timeout", f"The body did not arrive within {limit}.", _CLOSE) from None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Problem(507, "storage_full", "The disk for temporary files is full. Retry later.") from None
            raise
        finally:
            _ActiveReaders.count -= 1

    async def _read_parts(self) -> Form:
        # Only a server with a multipart route needs the parser.
        from python_multipart.exceptions import FormParserError  # noqa: PLC0415
        from python_multipart.multipart import MultipartParser  # noqa: PLC0415

        try:
            await self._parse(MultipartParser(
                _boundary_of(self._request),
                {
                    "on_part_begin": self._begin_part, "on_part_data": self._add_data, "on_part_end": self._end_part,
                    "on_header_field": self._add_header_name, "on_header_value": self._add_header_value,
                    "on_header_end": self._end_header, "on_headers_finished": self._end_headers, "on_end": self._end,
                },
                max_header_count=_HEADERS_PER_PART_MAX, max_header_size=self._settings.form_part_header_bytes_max,
            ))  # fmt: skip
        except FormParserError as error:
            self._form.close()
            raise _invalid(str(error)) from None
        except BaseException:
            self._form.close()
            raise
        return self._form

    async def _parse(self, parser: "MultipartParser") -> None:
        size, more = 0, True
        while more:
            data, more = await self._receive()
            size += len(data)
            if size > self._request.body_max:
                raise self._request.body_too_large()
            parser.write(data)
            await self._write_files()
        parser.finalize()
        if not self._ended:
            raise _invalid("its last boundary is missing")
        for _, value in self._form.fields:
            if isinstance(value, UploadedFile):
                value.file.seek(0)

    async def _receive(self) -> tuple[bytes, bool]:
        seconds = self._request.body_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._request.receive_part()
        except TimeoutError:
            raise Problem(
                408, "body_timeout", f"No bytes of the body arrived for {pluralize(seconds, 'second')}.", _CLOSE
            ) from None

    async def _write_files(self) -> None:
        """Write received bytes of files; in a thread if they go to disk."""
        for target, data in self._unwritten:
            if target.size > self._settings.multipart_memory_bytes_max:
                await asyncio.to_thread(target.file.write, data)
            else:
                target.file.write(data)
        self._unwritten.clear()

    # -- called by the parser

    def _begin_part(self) -> None:
        if len(self._form.fields) >= self._settings.form_fields_max:
            raise too_many_fields(self._settings)
        self._headers, self._header_bytes = Message(), 0
        self._text.clear()
        self._file = None

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        try:
            self._headers[self._header_name.decode("ascii")] = self._header_value.decode()
        except ValueError:
            raise _invalid("a header of a part is not UTF-8") from None
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        self._name = str(self._headers.get_param("name", "", "content-disposition"))
        if not self._name:
            raise _invalid("a part has no name in its Content-Disposition")
        filename = self._headers.get_param("filename", None, "content-disposition")
        if filename is not None:
            spool = SpooledTemporaryFile(self._settings.multipart_memory_bytes_max)  # noqa: SIM115 - closed with the form
            media_type = self._headers.get("content-type", "application/octet-stream")
            self._file = UploadedFile(collapse_rfc2231_value(filename), media_type, cast("IO[bytes]", spool))
            self._form.fields.append((self._name, self._file))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.size += end - start
            if self._file.size > self._settings.form_file_bytes_max:
                raise field_too_large(self._name, self._settings.form_file_bytes_max)
            self._unwritten.append((self._file, data[start:end]))
        else:
            self._text += data[start:end]
            if len(self._text) > self._settings.form_field_bytes_max:
                raise field_too_large(self._name, self._settings.form_field_bytes_max)

    def _end_part(self) -> None:
        if self._file is None:
            try:
                self._form.fields.append((self._name, self._text.decode()))
            except UnicodeDecodeError:
                raise _invalid("a field is not UTF-8") from None

    def _end(self) -> None:
        self._ended = True

    def _count_header_bytes(self, count: int) -> None:
        self._header_bytes += count
        limit = self._settings.form_part_header_bytes_max
        if self._header_bytes > limit:
            message = f"The headers of a part are larger than {pluralize(limit, 'byte')}."
            raise Problem(413, "form_too_large", message, _CLOSE)


def _boundary_of(request: Request) -> str:
    header = Message()
    header["content-type"] = request.header(b"content-type") or ""
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not boundary or not boundary.isascii():
        raise _invalid("its Content-Type has no boundary")
    return boundary


def _invalid(reason: str) -> Problem:
    return Problem(400, "invalid_form", f"The body is not valid multipart/form-data: {reason}.", _CLOSE)
