"""How the tests find their browser, and the error if there is none."""

from pathlib import Path

import pytest

from tests.support.processes import chromium
from tests.support.processes.chromium import Chromium, NoChromiumError


def test_the_browser_of_the_environment_variable_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "chrome"
    program.touch(mode=0o755)
    monkeypatch.setenv(chromium.VARIABLE, str(program))
    assert chromium.find(print) == Chromium(program, {})
    program.chmod(0o644)
    monkeypatch.setenv(chromium.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(NoChromiumError, match="absent is not an executable file"):
        chromium.find(print)


def test_without_packages_the_error_explains_what_to_do_and_no_files_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoChromiumError, match=f"install it, or set {chromium.VARIABLE} to its path"):
        chromium.unpack(tmp_path / "chromium")
    for name in ("apt-get", "dpkg"):
        (tmp_path / name).write_text("#!/bin/sh\necho no network >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(NoChromiumError, match=r"apt-get .* update failed:\nno network"):
        chromium.unpack(tmp_path / "chromium")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apt-get", "dpkg"]


def test_an_unpacked_chromium_finds_the_private_libraries_of_pulseaudio(tmp_path: Path) -> None:
    private = tmp_path / "usr" / "lib" / "x86_64-linux-gnu" / "pulseaudio"
    private.mkdir(parents=True)
    found = chromium.unpacked(tmp_path)
    assert found.environment["LD_LIBRARY_PATH"].split(":") == [str(private.parent), str(private)]
