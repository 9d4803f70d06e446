import gzip
import io
import tarfile
from pathlib import Path

import debian_packages
import pytest


def tar(files: dict[str, bytes], mode: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def ar(members: dict[str, bytes]) -> bytes:
    packed = b"!<arch>\n"
    for name, content in members.items():
        packed += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        packed += content + b"\n" * (len(content) % 2)
    return packed


@pytest.fixture
def deb(tmp_path: Path) -> Path:
    control = b"Package: tiny\nVersion: 1:2.0-3\nDescription: a package\n of two lines: really\n"
    data = {
        "./usr/share/man/de/man1/a.1.gz": gzip.compress(b".SH NAME\n", mtime=0),
        "./usr/share/doc/b.txt": b"b",
        "./usr/share/doc/c.png": b"c",
    }
    members = {
        "debian-binary": b"2.0",  # odd: the reader has to skip the padding byte
        "control.tar.gz/": tar({"./control": control}, "w:gz"),
        "data.tar.xz/": tar(data, "w:xz"),
    }
    path = tmp_path / "tiny_1%3a2.0-3_all.deb"
    path.write_bytes(ar(members) + b"what follows the last member is not read")
    return path


def test_files_come_in_archive_order_and_gz_comes_decompressed(deb: Path) -> None:
    assert list(debian_packages.read_files(deb, r"/man/|\.txt$")) == [
        ("./usr/share/man/de/man1/a.1", b".SH NAME\n"),
        ("./usr/share/doc/b.txt", b"b"),
    ]


def test_control_fields(deb: Path) -> None:
    fields = debian_packages.read_control(deb)
    assert (fields["Package"], fields["Version"]) == ("tiny", "1:2.0-3")


def test_a_cached_package_needs_no_apt(deb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    [package] = debian_packages.fetch([("newer", "tiny")], deb.parent)
    assert (package.name, package.path) == ("tiny", deb)
    assert len(package.sha256) == 64


def test_without_apt_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(debian_packages.PackageError, match=r"apt-get is not on PATH.*--cache"):
        debian_packages.fetch([("tiny",)], tmp_path)


def test_a_file_that_is_no_package_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.deb"
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(debian_packages.PackageError, match=r"broken\.deb is not an ar archive"):
        next(debian_packages.read_files(path, "."))


def test_a_package_without_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.deb"
    path.write_bytes(ar({"debian-binary": b"2.0\n"}))
    with pytest.raises(debian_packages.PackageError, match=r"no member data\.tar"):
        next(debian_packages.read_files(path, "."))
