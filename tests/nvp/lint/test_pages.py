"""``validate URL``: pages of an index, and the ways in which servers fail."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.documents import TORCH, document
from support.range_server import Answer, RangeServer, serve_answers
from support.release_cases import edit_wheel
from support.wheels import publish, stub_wheel

from nvidia_variant_provider.errors import InputError
from nvp.cli import main
from nvp.findings import ERROR
from nvp.index.http.blocking import BlockingClient
from nvp.index.http.client import Client
from nvp.index.http.urls import Settings
from nvp.lint.files import Reading
from nvp.lint.runner import check_page, check_paths

JSON = "application/vnd.pypi.simple.v1+json"
PROJECT = "/simple/torch/"
NULL = document({"null": {}})


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """Return the files of a consistent release."""
    publish(tmp_path, TORCH, "torch", "2.9.1")
    return {
        path.name: path.read_bytes()
        for path in (tmp_path / "torch").iterdir()
        if path.name != "index.html"
    }


@contextmanager
def index(
    files: Mapping[str, bytes],
    *,
    as_json: bool = False,
    answers: Mapping[str, Answer] | None = None,
    times: Mapping[str, str] | None = None,
    extra: Mapping[str, Mapping[str, object]] | None = None,
    credentials: str | None = None,
) -> Iterator[RangeServer]:
    """Serve files and their page.

    :param extra: more keys of files, by a part of their names.
    """
    if as_json or extra:
        page = {
            "meta": {"api-version": "1.1"},
            "name": "torch",
            "versions": ["2.9.1"],
            "files": [
                {
                    "filename": name,
                    "url": f"../../files/{name}",
                    "hashes": {"sha256": sha256(data).hexdigest()},
                    "size": len(data),
                    "upload-time": (times or {}).get(name),
                    **{
                        key: value
                        for part, keys in (extra or {}).items()
                        if part in name
                        for key, value in keys.items()
                    },
                }
                for name, data in files.items()
            ],
        }
        body, kind = json.dumps(page).encode(), JSON
    else:
        links = (
            f'<a href="../../files/{n}#sha256={sha256(data).hexdigest()}">{n}</a>'
            for n, data in files.items()
        )
        body, kind = b"<!DOCTYPE html>" + "".join(links).encode(), "text/html"
    served = {PROJECT: Answer(body=body, kind=kind)}
    served |= {f"/files/{name}": Answer(body=data) for name, data in files.items()}
    served |= answers or {}
    with serve_answers(served, credentials=credentials) as server:
        yield server


def codes(server: RangeServer) -> list[str]:
    findings = check_paths([f"{server.url}{PROJECT}"])
    return [finding.code for finding in findings if finding.severity == ERROR]


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_a_consistent_page_is_clean(files: dict[str, bytes], as_json: bool) -> None:
    with index(files, as_json=as_json) as server:
        assert codes(server) == []
    # Each file is read once and completely, because its hash is compared.
    asked = [r.partition("/files/")[2] for r in server.requests if "/files/" in r]
    assert sorted(asked) == sorted(f"{name} whole" for name in files)


def test_a_label_without_wheel_is_a_finding(files: dict[str, bytes]) -> None:
    left = {name: data for name, data in files.items() if "-cu126" not in name}
    with index(left) as server:
        assert codes(server) == ["NV402"]


def page_findings(
    files: Mapping[str, bytes], extra: Mapping[str, Mapping[str, object]], **more: Any
) -> list[tuple[str, str]]:
    with index(files, extra=extra, **more) as server:
        findings = check_paths([f"{server.url}{PROJECT}"], select=["NV1", "NV4"])
    return [(finding.code, finding.message) for finding in findings]


def test_a_yanked_wheel_is_not_there(files: dict[str, bytes]) -> None:
    assert page_findings(files, {"-cu126": {"yanked": ""}}) == []
    (found,) = page_findings(files, {"-cu126": {"yanked": "broken"}})
    assert found[0] == "NV402"
    assert "yanked" in found[1]
    # A null variant or a regular wheel is enough for machines without a GPU.
    plain = {"any.whl": {"yanked": True}}
    assert page_findings(files, plain) == []
    both = {**plain, "-null": {"yanked": True}}
    assert {code for code, _ in page_findings(files, both)} == {"NV114", "NV402"}
    # Publishers yank a whole release on purpose.
    assert page_findings(files, {".whl": {"yanked": True}}) == []


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"requires-python": ">=3.13"}, [">=3.13", "none"]),
        ({"size": 12}, ["12 bytes"]),
        ({"core-metadata": True}, ["announces a METADATA file", "404"]),
        ({"core-metadata": {"sha256": "0" * 64}}, ["announces a METADATA file"]),
    ],
)
def test_a_page_that_contradicts_a_wheel_is_a_finding(
    files: dict[str, bytes], keys: Mapping[str, object], parts: Sequence[str]
) -> None:
    found = page_findings(files, {"-cu126": keys})
    assert [code for code, _ in found] == ["NV419"]
    assert [part for part in parts if part not in found[0][1]] == []


def test_the_metadata_file_is_compared_with_the_wheel(files: dict[str, bytes]) -> None:
    (name,) = (name for name in files if "-cu126" in name)
    with zipfile.ZipFile(io.BytesIO(files[name])) as wheel:
        (inside,) = (n for n in wheel.namelist() if n.endswith("/METADATA"))
        metadata = wheel.read(inside)

    def found(served: bytes, digest: str) -> list[tuple[str, str]]:
        keys = {"core-metadata": {"sha256": digest}}
        answers = {f"/files/{name}.metadata": Answer(body=served)}
        return page_findings(files, {"-cu126": keys}, answers=answers)

    right = sha256(metadata).hexdigest()
    assert found(metadata, right) == found(metadata, right.upper()) == []
    assert found(metadata, "") == []
    (other,) = found(metadata + b"Requires-Dist: six\n", right)
    (wrong,) = found(metadata, sha256(b"").hexdigest())
    assert other[0] == wrong[0] == "NV419"
    assert "not the one inside" in other[1]
    assert right in wrong[1]


def test_requires_python_may_be_written_in_another_way(tmp_path: Path) -> None:
    path = stub_wheel(tmp_path, "torch", "2.9.1", "null", variant_json=NULL)
    edit_wheel(path, {}, {"\nName:": "\nRequires-Python: >=3.9,<4\nName:"})
    files = {path.name: path.read_bytes()}
    files["torch-2.9.1-variants.json"] = json.dumps(NULL).encode()
    for given, codes in (("<4, >=3.9", []), (">=3.9", ["NV419"]), (None, [])):
        found = page_findings(files, {".whl": {"requires-python": given}})
        assert [code for code, _ in found] == codes


@pytest.mark.parametrize("ranges", [True, False])
def test_large_wheels_need_ranges_or_metadata(tmp_path: Path, *, ranges: bool) -> None:
    members = {"torch/large.bin": random.Random(1).randbytes(17 * 1024 * 1024)}
    path = stub_wheel(
        tmp_path, "torch", "2.9.1", "null", variant_json=NULL, members=members
    )
    files = {path.name: path.read_bytes()}
    files["torch-2.9.1-variants.json"] = json.dumps(NULL).encode()
    url = f"/files/{path.name}"
    answers = {url: Answer(body=files[path.name], ranges=ranges)}
    found = page_findings(files, {"x": {}}, answers=answers)
    assert [code for code, _ in found] == ([] if ranges else ["NV421"])
    # Installers need no range requests for a wheel whose METADATA is served.
    with zipfile.ZipFile(path) as wheel:
        answers[f"{url}.metadata"] = Answer(
            body=wheel.read("torch-2.9.1.dist-info/METADATA")
        )
    keys = {".whl": {"core-metadata": True}}
    assert page_findings(files, keys, answers=answers) == []


def test_upload_times_are_compared(files: dict[str, bytes]) -> None:
    times = dict.fromkeys(files, "2026-01-02T00:00:00Z")
    times["torch-2.9.1-variants.json"] = "2026-01-01T00:00:00Z"
    with index(files, as_json=True, times=times) as server:
        findings = check_paths([f"{server.url}{PROJECT}"])
    assert "NV410" in {finding.code for finding in findings}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(status=404), "HTTP 404"),
        (Answer(status=500), "HTTP 500"),
        (Answer(body=b"{", kind=JSON), "is not a project page"),
        (Answer(body=b"[]", kind=JSON), "is not a project page"),
        (Answer(body=b'{"files": 5}', kind=JSON), "is not a project page"),
        (Answer(body=b'{"meta": {}}', kind=JSON), "there is no 'files'"),
        (Answer(body=b"\xff", kind="text/html"), "not UTF-8"),
        (Answer(body=b"x", kind="image/png"), "not a project page"),
        (Answer(body=b"<a>" * 50, kind="text/html", fault="cut"), "cannot be read"),
        (Answer(status=302, headers={"Location": PROJECT}), "10 redirects"),
        (
            Answer(status=302, headers={"Location": "file:///etc/passwd"}),
            "only http and https are read",
        ),
    ],
)
def test_a_page_that_is_not_a_project_page_is_a_finding(
    answer: Answer, message: str
) -> None:
    with serve_answers({PROJECT: answer}) as server:
        (finding,) = check_paths([f"{server.url}{PROJECT}"])
    assert finding.code == "NV100"
    assert message in finding.message


def test_a_page_without_files_is_a_finding() -> None:
    page = Answer(body=b"<!DOCTYPE html>", kind="text/html")
    with serve_answers({PROJECT: page}) as server:
        assert codes(server) == ["NV100"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=404),
        Answer(status=403),
        Answer(body=b"PK" * 500, ranges=False),
        Answer(body=b"PK" * 500, fault="lie"),
        Answer(body=b"no zip file" * 50),
        Answer(),
    ],
)
def test_a_wheel_that_cannot_be_read_is_a_finding(
    files: dict[str, bytes], answer: Answer
) -> None:
    (name,) = (name for name in files if "-cu126" in name)
    # If the file exists, its hash is also not that of the page.
    expected = ["NV411", "NV417"][: 1 + (answer.status == 200)]
    with index(files, answers={f"/files/{name}": answer}) as server:
        assert codes(server) == expected


def test_metadata_that_cannot_be_read_is_a_finding(files: dict[str, bytes]) -> None:
    path = "/files/torch-2.9.1-variants.json"
    with index(files, answers={path: Answer(status=500)}) as server:
        assert codes(server) == ["NV100"]


@pytest.mark.parametrize(
    ("fault", "settings", "message"),
    [
        ("hang", Settings(timeout=0.1), "no response within 0.1 s"),
        ("drip", Settings(deadline=0.1), "not complete after 0.1 s"),
    ],
)
def test_a_slow_server_is_a_finding(
    fault: str, settings: Settings, message: str
) -> None:
    def connect() -> BlockingClient:
        return BlockingClient(lambda: Client(settings))

    with serve_answers({PROJECT: Answer(body=b"x" * 100, fault=fault)}) as server:
        (finding,) = check_paths([f"{server.url}{PROJECT}"], connect=connect)
    assert (finding.code, finding.message) == ("NV100", message)


def test_an_oversized_file_is_not_read_to_the_end() -> None:
    body = bytes(5 << 20)
    with (
        serve_answers({"/x": Answer(body=body)}) as server,
        BlockingClient() as client,
        pytest.raises(InputError, match="larger than 4 MiB"),
    ):
        client.read(f"{server.url}/x")


def test_other_schemes_are_not_followed(files: dict[str, bytes]) -> None:
    page = '<a href="file:///etc/torch-2.9.1-variants.json">it</a>'
    answers = {PROJECT: Answer(body=page.encode(), kind="text/html")}
    with index(files, answers=answers) as server:
        (finding,) = check_paths([f"{server.url}{PROJECT}"], ignore=["NV418"])
    assert (finding.code, finding.message) == ("NV100", "only http and https are read")


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_credentials_in_the_url_are_used_and_not_shown(
    files: dict[str, bytes], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    del files["torch-2.9.1-variants.json"]
    with index(files, as_json=as_json, credentials="me:s3cr@t") as server:
        page = f"{server.url}{PROJECT}"
        for user in ("me:s3cr%40t", "me:wr0ng"):
            assert main(["validate", page.replace("://", f"://{user}@")]) == 1
            output = capsys.readouterr()
            assert page.replace("://", "://****@") in output.out
            assert user not in output.out + output.err
            assert ("HTTP 401" in output.out) == (user == "me:wr0ng")
            assert ("NV409" in output.out) == (user != "me:wr0ng")
            assert "NV411" not in output.out  # the wheels could be read


def test_credentials_do_not_follow_a_redirect() -> None:
    page = Answer(body=b"<!DOCTYPE html>", kind="text/html")
    with serve_answers({PROJECT: page}, credentials="me:x") as elsewhere:
        moved = Answer(status=302, headers={"Location": elsewhere.url + PROJECT})
        with serve_answers({PROJECT: moved}, credentials="me:x") as server:
            url = server.url.replace("://", "://me:x@")
            (finding,) = check_paths([url + PROJECT])
    assert elsewhere.requests
    assert "HTTP 401" in finding.message


# The root of an index


def root_page(names: Sequence[str], *, as_json: bool) -> Answer:
    if as_json:
        projects = [{"name": name} for name in names]
        page = {"meta": {"api-version": "1.0"}, "projects": projects}
        return Answer(body=json.dumps(page).encode(), kind=JSON)
    links = "".join(f'<a href="{name}/">{name}</a>' for name in names)
    # A plain web server also links the parent directory, and files of the index itself.
    body = f'<!DOCTYPE html><a href="../">..</a><a href="robots.txt">x</a>{links}'
    return Answer(body=body.encode(), kind="text/html")


@pytest.mark.parametrize("as_json", [False, True], ids=["html", "json"])
def test_every_project_of_an_index_is_checked(
    files: dict[str, bytes], as_json: bool
) -> None:
    left = {name: data for name, data in files.items() if "-cu126" not in name}
    empty = Answer(body=b"<!DOCTYPE html>", kind="text/html")
    answers = {
        "/simple/": root_page(["broken", "sources", "torch"], as_json=as_json),
        "/simple/broken/": Answer(status=500),
        "/simple/sources/": empty,
    }
    with index(left, answers=answers) as server:
        findings = check_paths([f"{server.url}/simple/"])
        errors = [(f.code, f.path) for f in findings if f.severity == ERROR]
        assert errors == [
            ("NV402", f"{server.url}/files/torch-2.9.1-variants.json"),
            ("NV100", f"{server.url}/simple/broken/"),
        ]


def test_root_of_an_index_without_a_slash_at_the_end(files: dict[str, bytes]) -> None:
    body = b'<a href="/simple/torch/">torch</a>'
    answers = {"/simple": Answer(body=body, kind="text/html")}
    del files["torch-2.9.1-variants.json"]
    with index(files, answers=answers) as server:
        findings = check_paths([f"{server.url}/simple"])
        assert "NV409" in {f.code for f in findings}


def test_projects_of_an_index_are_read_one_at_a_time(files: dict[str, bytes]) -> None:
    del files["torch-2.9.1-variants.json"]
    answers = {"/simple/": root_page(["torch", "zebra"], as_json=False)}
    with index(files, answers=answers) as server, BlockingClient() as client:
        findings = check_page(f"{server.url}/simple/", lambda: client, Reading())
        assert next(f for f in findings if f.severity == ERROR).code == "NV409"
        assert not [request for request in server.requests if "zebra" in request]


def test_credentials_are_used_for_every_project_and_not_shown(
    files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="nvp")
    del files["torch-2.9.1-variants.json"]
    answers = {"/simple/": root_page(["torch"], as_json=False)}
    with index(files, answers=answers, credentials="me:s3cret") as server:
        url = server.url.replace("://", "://me:s3cret@")
        findings = check_paths([f"{url}/simple/"])
    assert [f.code for f in findings if f.severity == ERROR] == ["NV409"]
    assert "s3cret" not in str(findings)
    assert "/simple/torch/" in caplog.text
    assert "s3cret" not in caplog.text


def test_command_accepts_the_url_of_a_project(
    files: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    with index(files) as server:
        assert main(["validate", f"{server.url}{PROJECT}"]) == 0
    assert "error" not in capsys.readouterr().out
