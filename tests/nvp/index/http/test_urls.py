"""Credentials in URLs, and URLs without their secrets."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import urldefrag

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.models.link import Link

from nvidia_variant_provider.errors import redacted
from nvp.index.http import urls
from nvp.index.http.logins import authorization_after, with_user
from nvp.index.http.urls import (
    Settings,
    absolute_url,
    is_http,
    is_loopback,
    is_plain,
    nearest_url,
    path_of_file_url,
    server_of,
    split_credentials,
)

URL = "https://index.example:8443/simple/?a=b#c"


def test_overlong_url_is_not_resolved() -> None:
    assert absolute_url("../" * 2 + "a", URL) == "https://index.example:8443/a"
    assert absolute_url("../" * 100_000 + "a", URL) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "url",
    ["////h/s/a", "/////h/s/a", "///%5C%5Ch/s/a", "///%2Fh/s/a", "//%5C%2Fh/s/a"],
)
def test_pages_name_no_servers_of_windows(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = pytest.importorskip("nturl2path")
    monkeypatch.setattr("urllib.request.url2pathname", windows.url2pathname)
    path = path_of_file_url(f"file:{url}")
    assert path[1:2] not in ("/", "\\")
    assert path_of_file_url("file:///C:/a/b.whl") == "C:\\a\\b.whl"


@given(st.text(), st.text())
def test_credentials_are_quoted_in_urls(user: str, password: str) -> None:
    from urllib.parse import quote

    try:
        pair = f"{quote(user, safe='')}:{quote(password, safe='')}"
    except UnicodeEncodeError:
        return  # A lone surrogate cannot be in a URL.
    url = URL.replace("://", f"://{pair}@")
    assert split_credentials(url) == (URL, (user, password))
    assert split_credentials(with_user(URL, user)) == (URL, (user, ""))
    assert server_of(url) == server_of(URL) == "https://index.example:8443"


PATHS = st.lists(st.sampled_from(["a", "b", "ab", "abc"]), max_size=4).map("/".join)


@given(PATHS, st.lists(PATHS, max_size=3))
def test_the_nearest_url_is_that_of_pip(path: str, others: list[str]) -> None:
    """pip sends the user of the nearest index, also for files next to the index."""
    from pip._internal.network.auth import MultiDomainBasicAuth

    known = [f"https://index.example/{other}" for other in others]
    found = nearest_url(f"https://index.example/{path}", ["https://x.example/", *known])
    auth = MultiDomainBasicAuth(index_urls=known)
    expected = auth._get_index_url(f"https://index.example/{path}")
    assert (found and f"{found.rstrip('/')}/") == expected


def test_urls_without_credentials() -> None:
    assert split_credentials(URL) == (URL, None)
    assert server_of("HTTPS://Index.Example/x") == "https://index.example"


@pytest.mark.parametrize("pair", ["x[::1]@[::1", "[::1]@@][", "user:se\uff1acret@host"])
def test_a_malformed_server_after_a_user(pair: str) -> None:
    """A link on a page was a traceback, and a message quoted a password."""
    url = f"http://{pair}/kern-1.0.tar.gz"
    assert absolute_url(url, URL) is None
    with pytest.raises(ValueError, match="its server is malformed"):
        split_credentials(url)


def test_each_of_many_starts_of_urls_is_redacted() -> None:
    """Only the text up to the last @ sign is searched for passwords."""
    many = "/".join(
        f"http://user:secret{n}@h.example/x?key{n}=secret" for n in range(9)
    )
    assert "secret" not in redacted(f"{many} {'://%20' * 99}")


@given(st.text(alphabet="abc@:%/?#=&;", max_size=20))
def test_a_password_is_never_shown(text: str) -> None:
    password = "S3cret"
    for secret in (f"user:{password}", password, f"{password}:x"):
        for scheme in ("https", "ftp", "git+ssh"):
            shown = redacted(f"{scheme}://{secret}@index.example/{text}")
            assert password not in shown
            assert shown.startswith(f"{scheme}://****@")
    # A fragment, which has the hash, is not sent to servers.
    query = text.replace("#", "")
    assert password not in redacted(f"https://index.example/a?{query}={password}")


def test_a_path_is_not_a_url() -> None:
    assert redacted("C:/wheels@home/x") == "C:/wheels@home/x"
    assert redacted(str(PurePosixPath("ftp://me:S3cret@a/b"))) == "ftp:/****@a/b"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:S3/cret@index.example/x@y", "https://****@index.example/x@y"),
        ("https://me:S3?cr#et@index.example/", "https://****@index.example/"),
        ("see //me:S3cret@index.example/", "see //****@index.example/"),
        ("https://me:#S3cret@index.example/", "https://****@index.example/"),
        ("https://me:?S3cret@index.example/", "https://****@index.example/"),
        ("m://me:S3cret@index.example/", "m://****@index.example/"),
        ("m://S3cret@index.example/", "m://****@index.example/"),
        ("https://h.example:80/x@1", "https://h.example:80/x@1"),
        ("https://h.example/x;token=S3cret/y/", "https://h.example/x;token=****"),
        ("https://h.example:8080/x@1", "https://h.example:8080/x@1"),
        ("https://[::1]:8080/x@1", "https://[::1]:8080/x@1"),
        ("git+https://h.example/x@v1", "git+https://h.example/x@v1"),
    ],
)
def test_what_stands_for_a_password(url: str, expected: str) -> None:
    assert redacted(url) == expected


def test_a_url_of_any_length_is_redacted_at_once() -> None:
    """Anyone can write such a URL, whose redaction once took minutes."""
    for part in ("ab://", "ab:/x;", "ab://b:c/", "ab:/?a=b&", "a://", "a://b:/", "b:#"):
        assert redacted(part * 40_000)


def test_only_the_hosts_that_pip_does_not_verify_are_trusted() -> None:
    """pip reads plain HTTP from any host with ``*``, and verifies certificates."""
    url = "https://wheels.example:8443/"
    for host in ("wheels.example", "Wheels.Example:8443"):
        assert Settings(trusted_hosts=(host,)).is_trusted(url)
    assert Settings(trusted_hosts=("[::1]",)).is_trusted("https://[::1]:1/")
    for host in ("*", "*.example", "wheels.example:1"):
        assert not Settings(trusted_hosts=(host,)).is_trusted(url)
    assert Settings(trusted_hosts=("*",)).is_allowed("http://wheels.example/")


def test_a_url_in_a_sentence_is_redacted() -> None:
    sentence = "cannot use the proxy http://me:S3cret@proxy.example:3128: refused"
    assert "S3cret" not in redacted(sentence)
    assert redacted(sentence).endswith("@proxy.example:3128: refused")
    # The URLs of proxies of indexes, such as devpi, contain the URL of another server.
    nested = "https://me:S3cret@proxy.example/https://me:S3cret@index.example/simple/"
    assert "S3cret" not in redacted(nested)
    assert "S3cret" not in redacted(f"{sentence} by {nested}")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://a", True),
        ("https://a", True),
        ("HTTPS://a", True),  # as a path, it could be in the current directory
        ("file:///a", False),
        ("/a/http:", False),
        ("ftp://a", False),
    ],
)
def test_locations_that_are_http(location: str, expected: bool) -> None:
    assert is_http(location) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("192.0.2.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("", False),
    ],
)
def test_hosts_that_are_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


_PARTS = [
    *"/.:?#%@[]\\ \t<a", "..", "//", "%2e", "%2F", "%zz", "%c3%a9", "\u00e9", "b.whl",
    "http:", "https://", "h.example", "[::1]", ":80", "a:", "mailto:x", '"', "u:p@",
]  # fmt: skip


@pytest.mark.parametrize("start", ["//", "\thttps://", "https:/\n/u:p@", "x://"])
def test_a_server_of_very_many_letters(start: str) -> None:
    """Python sorts the marks of letters in quadratic time: 4 s for 120 KB."""
    letters = "\u0300\u0316" * 600
    for number, is_read in ((99, True), (1200, False)):
        found = absolute_url(f"{start}a{letters[:number]}.example/x", URL)
        assert (found is not None) is is_read
        base = f"https://a{letters[:number]}.example/"
        assert (absolute_url("x y", base) is not None) is is_read
    assert absolute_url(f"/{letters}?{letters}#{letters}", URL) is not None
    assert absolute_url(f"https://{'t' * 2000}@index.example/a", URL) is not None


def test_long_references_are_read_in_linear_time() -> None:
    for start in ("../", "/", "a:", "%41", "http://a:"):
        assert not is_plain(start * 20_000 + "\\")


@pytest.mark.parametrize("length", [1000, 3000])
def test_no_long_texts_are_kept(length: int) -> None:
    """1,024 texts of 64 KB took 128 MB."""
    kept, text = (urls._folder, urls._server_of), "a" * length
    for cache in kept:
        cache.cache_clear()
    folder = f"https://index.example:8443/simple/{text}/"
    assert absolute_url(f"{text}/x", URL) == f"{folder}x"
    assert server_of(f"http://u:p@{text}.example/x") == f"http://{text}.example"
    assert server_of(f"http://{text}@h.example:80/x") == "http://h.example"
    sizes = [cache.cache_info().currsize for cache in kept]
    assert sizes == ([1, 2] if length == 1000 else [0, 0])


@given(st.lists(st.sampled_from(_PARTS), max_size=8).map("".join))
def test_clients_agree_about_plain_references(reference: str) -> None:
    """Python and httpx, whose rules are those of browsers, find the same URL."""
    base = "https://index.example/simple/torch/"
    if is_plain(reference) and (url := absolute_url(reference, base)) is not None:
        assert httpx.URL(base).join(reference) == httpx.URL(url)
        assert Link(url).url_without_fragment == urldefrag(url).url


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        ("http://a:8080/", "http://A:8080/x", True),
        ("http://a:80/", "http://a/", True),
        ("http://a/", "https://a:443/", True),
        ("https://a/", "http://a/", False),
        ("http://a:8080/", "https://a:8080/", False),
        ("http://a:443/", "https://a/", False),
        ("http://a/", "http://a:8080/", False),
        ("http://a/", "http://b/", False),
        ("http://a/", "http://a.b/", False),
    ],
)
def test_the_servers_that_keep_credentials(old: str, new: str, is_kept: bool) -> None:
    headers = {"Authorization": "Basic x"}
    request = httpx.Request("GET", old, headers=headers)
    response = httpx.Response(302, request=request)
    assert authorization_after(response, new) == ("Basic x" if is_kept else None)
