"""Local paths, and URLs as text."""

import copy
import io

import pytest

from msdata_jax.errors import RecipeError, SourceError
from msdata_jax.recipe import Source, without_credentials
from msdata_jax.sources import storage
from msdata_jax.sources.remote import failures, urls
from msdata_jax.sources.remote.options import RemoteOptions


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "some.bin"
    path.write_bytes(bytes(range(256)) * 10)
    return path


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_file_is_read_anywhere(file, form):
    path, content = form.format(file), file.read_bytes()
    assert not storage.is_remote(path)
    assert [storage.base_name(each) for each in storage.find(path)] == ["some.bin"]
    opened = storage.open_bytes(path)
    assert opened.size == storage.size_of(path) == len(content)
    assert opened.pread(250, 20) == content[250:270]
    assert opened.pread(2550, 1 << 40) == content[2550:]
    assert opened.pread(1 << 40, 5) == b""
    opened.close()
    opened.close()
    with storage.as_file(path) as stream:
        stream.seek(-5, io.SEEK_END)
        assert stream.read() == content[-5:]
    assert storage.local_copy(path) == str(file)
    assert storage.beside(str(file), "x.idx") == str(file.with_name("x.idx"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@host/a.tar?X-Amz-Signature=abc", "https://host/a.tar"),
        ("http://host/a.tar#part", "http://host/a.tar"),
        ("s3://bucket/a?.tar", "s3://bucket/a?.tar"),
        ("s3://bucket/year=2024/a?.tar", "s3://bucket/year=2024/a?.tar"),
        ("abfs://box@account/a.tar?sv=1&sig=abc", "abfs://account/a.tar"),
        ("sftp://user@host/home/a@b.tar", "sftp://host/home/a@b.tar"),
        ("simplecache::https://user:pass@host/a", "simplecache::https://host/a"),
        ("/data/a?x=1@b", "/data/a?x=1@b"),
    ],
)
def test_urls_are_shown_without_credentials(url, shown):
    assert without_credentials(url) == shown
    assert "pass" not in urls.redacted(f"cannot open {url}, sorry")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{008..011}.tar", ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]),
        ("{x,y}/{1..2}", ["x/1", "x/2", "y/1", "y/2"]),
        ("{9..10}", ["9", "10"]),
        ("plain", ["plain"]),
        ("{odd}", ["{odd}"]),
    ],
)
def test_braces(pattern, names):
    assert list(urls.expand_braces(pattern)) == names


@pytest.mark.parametrize("pattern", ["{1..9999999}", "{9..1}", "{1..1000}{1..1000}{1..1000}"])
def test_braces_of_too_many_names_are_refused(pattern):
    with pytest.raises(SourceError, match=r"at most|the most"):
        list(urls.expand_braces(pattern))


def test_a_list_of_files_stays_on_its_host():
    text = "# all\na.tar\n\nsub/b.tar\n/c.tar\ns3://bucket/d.tar\n"
    assert urls.manifest_entries(text, "s3://bucket/x/list.txt") == [
        "s3://bucket/x/a.tar", "s3://bucket/x/sub/b.tar", "s3://bucket/c.tar", "s3://bucket/d.tar",
    ]  # fmt: skip
    for line in ("https://other/a.tar", "s3://other/a.tar", "//other/a.tar"):
        with pytest.raises(SourceError, match="another host"):
            urls.manifest_entries(line, "s3://bucket/x/list.txt")


def test_identity_is_where_an_object_is_and_not_who_asks():
    def of(url="https://h/a", **options):
        return urls.identity("", url, options)

    assert of() == of("https://u:p@h/a?X-Amz-Signature=1") == of(key="a", client_kwargs={"auth": object()})
    assert (
        len({of(), of("https://h/b"), of("https://h/a?part=2"), of(endpoint_url="x"), of(endpoint_url="y")})
        == 5
    )


@pytest.mark.parametrize(
    ("status", "passes"), [(503, True), (429, True), (500, True), (403, False), (404, False), (400, False)]
)
def test_a_status_says_whether_to_try_again(status, passes):
    from msdata_jax.sources.protocol import is_transient

    error = failures.of_status("http://h/a", status)
    assert is_transient(error) == passes
    assert f"http://h/a: status {status}" in str(error)


def test_errors_of_other_libraries_tell_their_status():
    import urllib.error

    import aiohttp
    from botocore.exceptions import ClientError

    from msdata_jax.sources.protocol import is_transient

    def errors(status):
        yield urllib.error.HTTPError("http://h/a?sig=hush", status, "why", None, None)
        yield aiohttp.ClientResponseError(aiohttp.RequestInfo("http://h", "GET", {}), (), status=status)
        yield ClientError({"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {}}, "GetObject")

    for error in errors(503):
        assert is_transient(error)
        assert isinstance(failures.translated(error, "http://h/a"), ConnectionError)
    for error in errors(404):
        assert not is_transient(error)
        found = failures.translated(error, "http://h/a")
        assert isinstance(found, FileNotFoundError)
        assert "hush" not in str(found)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_bytes": 1000},
        {"block_bytes": 1 << 30},
        {"read_ahead": -1},
        {"deadline_seconds": 0},
        {"cache_bytes": 1 << 20},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(SourceError, match=next(iter(wrong))):
        RemoteOptions(**wrong)


def test_storage_is_for_urls_and_stays_secret(tmp_path):
    from msdata_jax import DGraph, Recipe

    def recipe(url, options):
        return Recipe(
            sources={"a": Source(url, storage=options)},
            strategy=DGraph().mix({"a": 1}).pad(seq_len=8, rows=1),
        )

    one = recipe("s3://bucket/a.tar", {"key": "me", "secret": "hush"})
    other = recipe("s3://bucket/a.tar", {})
    assert one.fingerprint() == other.fingerprint()
    assert one.content_of("a") == other.content_of("a")
    assert "hush" not in repr(one)
    signed = recipe("https://u:hush@host/a.tar?sig=hush", {})
    assert "hush" not in signed.data_of("a")
    assert signed.fingerprint() == recipe("https://host/a.tar", {}).fingerprint()
    with pytest.raises(RecipeError, match="for URLs"):
        Source([1, 2], storage={"anon": True})


def test_a_path_elsewhere_is_the_url_alone(tmp_path):
    path = storage.find("memory://a/b.bin", {"cache_dir": str(tmp_path)})[0]
    assert str(path) == "memory://a/b.bin"
    assert storage.beside(path, "c.bin") == "memory://a/c.bin"
    assert type(copy.deepcopy(path)) is str
