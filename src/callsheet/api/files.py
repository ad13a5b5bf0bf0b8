"""Files, uploads and deletions."""

from typing import Annotated

from msgspec import Struct

from callsheet.api.shared_fields import Example, Time, doc


class File(Struct, frozen=True):
    """A stored file: uploaded by a user, or the output of a job."""

    id: Annotated[str, doc("Id of the file.", Example.FILE_ID)]
    name: Annotated[str, doc("File name.", "sketch.png")]
    media_type: Annotated[str, doc("Media type, such as `image/png`.", "image/png")]
    bytes: Annotated[int, doc("Size in bytes.", 48211)]
    sha256: Annotated[str, doc("SHA-256 of the content, as hex.", Example.DIGEST)]
    url: Annotated[
        str, doc("Path on this server that returns the content. Send a key.", f"/v1/files/{Example.FILE_ID}")
    ]
    status: Annotated[str, doc("`uploading` until you finish the upload, `ready`, or `deleted`.", "ready")]
    user: Annotated[str, doc("Your id for the user to whom the file belongs.", "ann")]
    job_id: Annotated[str | None, doc("Id of the job that produced the file. Null for an upload.", Example.JOB_ID)]
    created_at: Annotated[Time, doc("Time at which the file was created.", Example.AT)]
    expires_at: Annotated[
        Time | None, doc("Time at which the file is deleted, unless an open job needs it. Null means never.", None)
    ]

    @property
    def reference(self) -> dict[str, str]:
        """How a job's input refers to this file."""
        return {"$file": self.id}


class FileBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A file to upload."""

    user: Annotated[str, doc("Your id for the user to whom the file belongs.", "ann")]
    name: Annotated[str, doc("File name.", "note.txt")]
    media_type: Annotated[str, doc("Media type, such as `image/png`.", "text/plain")]
    bytes: Annotated[int, doc("Exact size in bytes.", 4)]
    sha256: Annotated[str, doc("SHA-256 of the content, as hex.", Example.DIGEST)]


class Upload(Struct, frozen=True):
    """The request that uploads the content of a file. Send the headers exactly as given."""

    method: Annotated[str, doc("HTTP method.", "PUT")]
    url: Annotated[
        str,
        doc("Signed upload URL. If it starts with a slash, it is on this server. Send no key with it.",
            f"/v1/blobs/{Example.CURSOR}"),
    ]  # fmt: skip
    headers: Annotated[
        dict[str, str], doc("Headers to send, unchanged.", {"content-type": "text/plain", "content-length": "4"})
    ]
    expires_in_seconds: Annotated[int, doc("How long the URL is valid, in seconds.", 900)]


class NewFile(Struct, frozen=True):
    """A file whose content is not uploaded yet, and how to upload it."""

    file: Annotated[File, doc("The file, in status `uploading`.")]
    upload: Annotated[Upload, doc("How to upload the content.")]


class FilesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Filter and pagination of a list of uploads. The newest file is first."""

    user: Annotated[str, doc("List the uploads of this user. Required unless you use a user token.", "ann")] = ""
    limit: Annotated[int, doc("Maximum number of files to return.", 50)] = 50
    cursor: Annotated[str, doc("`next` of the previous page.", Example.CURSOR)] = ""


class FilePage(Struct, frozen=True):
    """One page of a user's uploads, newest first."""

    files: Annotated[list[File], doc("Files of this page.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class DeleteSummary(Struct, frozen=True):
    """What a deletion removed from storage."""

    files: Annotated[int, doc("Number of files removed.", 1)]
    bytes: Annotated[int, doc("Number of bytes removed.", 48211)]
    pending: Annotated[
        bool, doc("Whether content is still stored because the storage did not respond. It is removed later.", False)
    ] = False
