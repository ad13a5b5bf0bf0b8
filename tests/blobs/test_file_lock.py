"""A key of the local store has one writer at a time, over all processes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from callsheet.blobs.base import BlobBusyError, BlobExistsError
from callsheet.blobs.local import LocalBlobs

KEY = "acme/uploads/one"
HOLD = """
import sys
from pathlib import Path
from callsheet.blobs.local import LocalBlobs
incoming = LocalBlobs(Path(sys.argv[1])).incoming("acme/uploads/one")
incoming.write(b"half")
print("writing", flush=True)
sys.stdin.read()
"""


def incoming_files(folder: Path) -> list[Path]:
    return sorted((folder / ".incoming").iterdir())


def test_a_second_writer_of_a_key_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    with blobs.incoming(KEY) as first:
        first.write(b"half")
        for overwrite in (False, True):
            with pytest.raises(BlobBusyError):
                blobs.incoming(KEY, overwrite=overwrite)
        blobs.put("acme/uploads/other", b"another key")
        assert sum(path.stat().st_size for path in incoming_files(tmp_path)) == 4
    with blobs.incoming(KEY) as second:
        second.write(b"whole")
        second.finish()
    assert blobs.path(KEY).read_bytes() == b"whole"
    with blobs.incoming(KEY) as third, pytest.raises(BlobExistsError):
        third.finish()
    assert incoming_files(tmp_path) == []


def test_a_writer_in_another_process_is_respected_and_its_crash_frees_the_key(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        with pytest.raises(BlobBusyError):
            blobs.incoming(KEY)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    blobs.put(KEY, b"whole")
    assert blobs.path(KEY).read_bytes() == b"whole"
