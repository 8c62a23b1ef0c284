"""The library over HTTP: permissions of tokens, refused uploads, and attempts by pages of other sites."""

from __future__ import annotations

import argparse
import http.client
import io
import json
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tidemill.apps import view
from tidemill.viz import Library, Server, _http
from tidemill.viz.library import Limits, _schema

pytestmark = pytest.mark.skipif(
    not (_http.STATIC / "index.html").exists(), reason="the page is not built; `make setup` does it"
)

POINTS = "0 0 0 0 1 one\n1 1 1 1 2 two\n"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library", limits=Limits(bytes=1 << 20))


@pytest.fixture
def server(library: Library) -> Iterator[Server]:
    with Server(library) as server:
        yield server


@pytest.fixture
def plot(library: Library, tmp_path: Path) -> str:
    (tmp_path / "points.txt").write_text(POINTS)
    return library.add(tmp_path / "points.txt", title="Two points", tags=["small"]).id


def ask(
    server: Server, method: str, path: str, body: Any = None, token: str | None = "", **headers: str
) -> tuple[int, Any]:
    """Return status and response, parsed if it is JSON; uses the library's token by default."""
    host, port = server._http.server_address[:2]
    connection = http.client.HTTPConnection(str(host), int(port), timeout=launched.PATIENCE_S)
    if token is not None:
        headers = {"Authorization": f"Bearer {token or server.token}", **headers}
    data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    connection.request(method, f"/api/{path}", body=data, headers=headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    kind = answer.getheader("Content-Type", "")
    return answer.status, json.loads(text) if kind == "application/json" else text.decode("utf-8", "replace")


def test_a_plot_from_upload_to_removal(server: Server, library: Library) -> None:
    """Every route once, as a program would use them."""
    status, plot = ask(server, "POST", "plots?name=points.txt&title=Mine&tags=a,b&collection=C", POINTS)
    assert (status, plot["title"], plot["tags"], plot["points"]) == (201, "Mine", ["a", "b"], 2)
    base = f"plots/{plot['id']}"
    assert ask(server, "GET", "library")[1]["tags"] == {"a": 1, "b": 1}
    assert ask(server, "GET", "plots?search=two+tag%3Aa") == (200, {"plots": [plot], "total": 1})
    assert ask(server, "GET", "plots?search=three") == (200, {"plots": [], "total": 0})
    assert ask(server, "PATCH", base, {"title": "Yours", "tags": []})[1]["title"] == "Yours"
    assert ask(server, "POST", f"{base}/comments", {"text": "so it is", "author": "Ada"})[0] == 201
    change = {"set": "glyph", "point": "0", "value": "star"}
    version = ask(server, "POST", f"{base}/versions", {"name": "one", "parent": 0, "changes": [change]})[1]
    assert ask(server, "GET", f"{base}/versions/{version['number']}") == (200, {"changes": [change]})
    share = ask(server, "POST", f"{base}/shares", {"name": "Bob", "version": 1})[1]
    told = ask(server, "GET", base)[1]
    assert told["plot"]["title"] == "Yours" and told["writable"] and told["comments"][0]["text"] == "so it is"
    assert [one["name"] for one in told["versions"]] == ["original", "one"]
    assert [(one["name"], one["token"]) for one in told["shares"]] == [("Bob", "")]
    assert ask(server, "GET", f"{base}/frames/index")[0] == 200
    assert ask(server, "GET", f"{base}/frames/trajectories?rows=1")[0] == 200
    assert ask(server, "DELETE", f"{base}/shares/{share['number']}") == (200, {})
    assert ask(server, "PATCH", f"{base}/versions/1", {"name": "first"}) == (200, {**version, "name": "first"})
    assert ask(server, "PATCH", f"{base}/versions/1", {"changes": []})[0] == 400
    assert ask(server, "DELETE", f"{base}/versions/0")[0] == 400
    assert ask(server, "DELETE", f"{base}/versions/1") == (200, {})
    assert ask(server, "DELETE", f"{base}/versions/1") == (404, "there is no version 1 of the plot")
    assert ask(server, "DELETE", f"{base}/comments/1") == (200, {})
    assert ask(server, "DELETE", base) == (200, {})
    assert ask(server, "GET", base) == (404, f"there is no plot '{plot['id']}'") and library.plots() == []


def test_a_share_shows_one_plot_and_does_nothing_else(
    server: Server, library: Library, plot: str, tmp_path: Path
) -> None:
    """A share's link must not give access to anything else, nor allow changes."""
    other = library.add(tmp_path / "points.txt").id
    library.comment(plot, "not for strangers")
    library.save_version(plot, "one", [])
    library.save_version(plot, "two", [])
    share, pinned = library.share(plot), library.share(plot, version=1)
    for path in (
        "",
        "/frames/index",
        "/frames/files/frame-000000.safetensors",
        "/frames/trajectories?rows=0",
        "/versions/1",
    ):
        for token in (share.token, pinned.token):
            assert ask(server, "GET", f"plots/{plot}{path}", token=token)[0] == 200, path
    told = ask(server, "GET", f"plots/{plot}", token=share.token)[1]
    assert (told["writable"], told["comments"], told["shares"], len(told["versions"])) == (False, [], [], 3)
    told = ask(server, "GET", f"plots/{plot}", token=pinned.token)[1]
    assert [version["number"] for version in told["versions"]] == [1]
    assert ask(server, "GET", f"plots/{plot}/versions/2", token=pinned.token)[0] == 403
    for method, path, body in (
        ("GET", "library", None), ("GET", "plots", None), ("GET", f"plots/{other}", None), ("GET", f"plots/{other}/frames/index", None),
        ("POST", "plots?name=a.txt", POINTS), ("PATCH", f"plots/{plot}", {"title": "x"}), ("DELETE", f"plots/{plot}", None),
        ("POST", f"plots/{plot}/comments", {"text": "x"}), ("DELETE", f"plots/{plot}/comments/1", None),
        ("POST", f"plots/{plot}/versions", {"name": "x", "changes": []}), ("POST", f"plots/{plot}/shares", {}),
        ("DELETE", f"plots/{plot}/shares/1", None), ("PUT", f"plots/{plot}/frames/index", b"x"), ("GET", "selections", None),
    ):  # fmt: skip
        assert ask(server, method, path, body, token=share.token)[0] == 403, (method, path)
    assert (library.count(), library.plot(plot).title, len(library.versions(plot))) == (2, "Two points", 3)
    library.withdraw(plot, share.number)
    assert ask(server, "GET", f"plots/{plot}", token=share.token)[0] == 401
    for token in (None, "wrong", "", server.token + "x"):
        if token != "":
            assert ask(server, "GET", f"plots/{plot}", token=token)[0] == 401


def test_bad_uploads_say_why_and_the_server_goes_on(server: Server, library: Library) -> None:
    for query, body, status, said in (
        ("name=a.txt", b"1 2 3", 400, "a.txt, line 1: it has 3 fields"),
        ("name=..%2F..%2Fa.txt", b"1 2 3", 400, "a.txt, line 1"),
        ("name=..%5Ca.txt", b"1 2 3", 400, "a.txt, line 1"),
        ("name=%00.txt", POINTS, 201, ""),
        ("name=a.exe", POINTS, 400, "does not show its format"),
        ("", POINTS, 400, "an upload needs a name"),
        ("name=a.txt", b"x" * ((1 << 20) + 1), 413, "at most 1048576"),
        ("name=a.txt", b"", 413, "at least one byte"),
        ("name=a.txt&title=" + "x" * 300, POINTS, 400, "at most 200"),
        ("name=<img>.txt", POINTS, 201, ""),
    ):
        got = ask(server, "POST", f"plots?{query}", body)
        assert got[0] == status and said in str(got[1]), (query, got)
    assert library.count() == 2
    assert not [path for path in (library.folder / "plots").iterdir() if path.name.startswith(".")]


def test_an_upload_that_breaks_off_leaves_nothing(server: Server, library: Library) -> None:
    host, port = server._http.server_address[:2]
    with socket.create_connection((str(host), int(port)), timeout=launched.PATIENCE_S) as client:
        client.sendall(
            f"POST /api/plots?name=a.txt HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
            f"Content-Length: 100000\r\n\r\n{POINTS}".encode()
        )
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    assert library.count() == 0 and list((library.folder / "plots").iterdir()) == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "", {"nonsense": 1}), ("PATCH", "", {"title": 7}), ("PATCH", "", {"tags": [1]}), ("PATCH", "", []),
        ("PATCH", "", b"{"), ("POST", "/comments", {}), ("POST", "/comments", {"text": " "}), ("POST", "/versions", {"name": "x"}),
        ("POST", "/versions", {"name": "", "changes": []}), ("POST", "/versions", {"name": "x", "changes": [{"set": "all"}]}),
        ("POST", "/versions", {"name": "x", "changes": [], "parent": True}), ("POST", "/shares", {"version": "1"}),
    ],
)  # fmt: skip
def test_nonsense_is_refused(server: Server, library: Library, plot: str, method: str, path: str, body: Any) -> None:
    assert ask(server, method, f"plots/{plot}{path}", body)[0] == 400
    assert (
        library.plot(plot).title == "Two points" and library.comments(plot) == [] and len(library.versions(plot)) == 1
    )


@pytest.mark.parametrize(
    "path",
    ["plots/../library", "plots/0123456789abcdef", "plots/{}/versions/9", "plots/{}/versions/x", "plots/{}/frames/library.sqlite",
     "plots/{}/frames/files/../../library.sqlite", "plots/{}/frames/files/%2e%2e%2flibrary.sqlite", "plots/{}x", "plots/{}/nothing"],
)  # fmt: skip
def test_nothing_else_is_found(server: Server, plot: str, path: str) -> None:
    assert ask(server, "GET", path.format(plot))[0] == 404


def test_pages_of_other_sites_get_nowhere(server: Server, library: Library, plot: str) -> None:
    """A site whose name resolves to this host, or that sends a form here, is not a page of this server."""
    port = server._http.server_address[1]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "10.0.0.1"):
        assert ask(server, "GET", f"plots/{plot}", Host=host)[0] == 403, host
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
        assert ask(server, "GET", f"plots/{plot}", Host=host)[0] == 200, host
    for origin in ("http://evil.example", "null", f"http://localhost:{port + 1}", "http://127.0.0.1"):
        assert ask(server, "DELETE", f"plots/{plot}", Origin=origin)[0] == 403, origin
        assert ask(server, "POST", "plots?name=a.txt", POINTS, Origin=origin)[0] == 403
    assert library.count() == 1
    assert ask(server, "POST", "plots?name=a.txt", POINTS, Origin=f"http://127.0.0.1:{port}")[0] == 201
    assert ask(server, "POST", "plots?name=a.txt", POINTS, **{"Transfer-Encoding": "chunked"})[0] == 411
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=launched.PATIENCE_S)
    connection.request("GET", f"/plots/{plot}?token=x")
    answer = connection.getresponse()
    policy = answer.getheader("Content-Security-Policy") or ""
    assert (
        answer.status == 200
        and "default-src 'self'" in policy
        and "script-src" not in policy
        and "unsafe-eval" not in policy
    )


def test_a_body_that_nobody_reads_is_not_the_next_question(server: Server, plot: str) -> None:
    """What is smuggled in after a request without a body must not be answered."""
    smuggled = f"DELETE /api/plots/{plot} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    host, port = server._http.server_address[:2]
    with socket.create_connection((str(host), int(port)), timeout=launched.PATIENCE_S) as client:
        client.sendall(
            f"GET /api/library HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
            f"Content-Length: {len(smuggled)}\r\n\r\n{smuggled}".encode()
        )
        got = b""
        while part := client.recv(1 << 16):
            got += part
    assert got.count(b"HTTP/1.1 200") == 1
    assert ask(server, "GET", f"plots/{plot}")[0] == 200


def raw(server: Server, request: bytes) -> bytes:
    """Return the server's response to bytes that need not be a request."""
    host, port = server._http.server_address[:2]
    with socket.create_connection((str(host), int(port)), timeout=launched.PATIENCE_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer


def test_broken_requests_are_refused_without_a_word_in_the_log(
    server: Server, library: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    """Anyone can send anything without a token; this must never raise an exception, and no response may contain a local
    path.
    """
    ours = b"Host: localhost\r\nAuthorization: Bearer " + server.token.encode() + b"\r\n"
    for request in (
        b"GET /api/library HTTP/1.1\r\nHost: [\r\n\r\n",
        b"POST /api/plots HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET //[x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 5000 + b".js HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%00.js HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /a\0.js HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /assets HTTP/9.9\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET /api/library HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n\r\n",
        b"GET /api/plots/" + b"0" * 16 + b"/frames/files/" + b"a" * 5000 + b" HTTP/1.1\r\n" + ours + b"\r\n",
        b"POST /api/plots?name=" + b"n" * 5000 + b".csv HTTP/1.1\r\nContent-Length: 1\r\n" + ours + b"\r\nx",
    ):
        answer = raw(server, request)
        assert b" 500 " not in answer and b" 200 " not in answer, (request[:60], answer[:200])
        assert b"site-packages" not in answer and str(library.folder).encode() not in answer
        assert str(_http.STATIC.parent).encode() not in answer
    assert ask(server, "GET", "library")[0] == 200
    said = capfd.readouterr()
    assert "Traceback" not in said.err + said.out


def test_a_library_that_another_program_holds(
    server: Server, library: Library, plot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may work later: the response says so, without the library's location."""
    monkeypatch.setattr(_schema, "_WAIT_S", 0.05)
    holding = sqlite3.connect(library.folder / "library.sqlite", isolation_level=None)
    holding.execute("BEGIN IMMEDIATE")
    request = f"DELETE /api/plots/{plot} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    answer = raw(server, request.encode())
    assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: " in answer
    assert str(library.folder).encode() not in answer
    holding.close()
    assert ask(server, "DELETE", f"plots/{plot}")[0] == 200


def test_uploads_are_decoded_within_a_bound(tmp_path: Path) -> None:
    """A file that needs too much memory or time, or crashes its reader, is refused; the server continues, and nothing
    is left.
    """
    many = io.BytesIO()
    table = pa.table({"x": [0.0], "y": [0.0], "z": [0.0], "label": ["a" * 200]})
    with pq.ParquetWriter(many, table.schema, compression="zstd") as writer:
        for _ in range(10):
            # Repeated rows take almost no space in the file.
            writer.write_table(pa.concat_tables([table] * 200_000).combine_chunks())
    for name, data, limits in (
        ("many.parquet", many.getvalue(), Limits(memory_bytes=2 << 30)),
        ("slow.parquet", many.getvalue(), Limits(timeout="50ms")),
    ):
        library = Library(tmp_path / name, limits=limits)
        with Server(library) as server:
            status, why = ask(server, "POST", f"plots?name={name}", data)
            assert (status, name in why, "limit" in why) == (400, True, True), why
            assert ask(server, "GET", "plots")[1]["total"] == 0
        assert not list((library.folder / "plots").iterdir())


def test_what_killed_uploads_have_left_is_removed(library: Library) -> None:
    """Immediately if no plot is being created there, and not while one is."""
    left = library.folder / "plots" / ".upload-killed"
    left.mkdir()
    with library.uploading():
        Library(library.folder)
        assert left.exists()
    Library(library.folder)
    assert not left.exists()


def test_the_token_need_not_be_in_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users can see command lines, but not a file or the environment."""
    (tmp_path / "token").write_text("of-a-file-0123456789\n")
    options = argparse.Namespace(token=None, token_file=tmp_path / "token")
    assert view._token(options) == "of-a-file-0123456789"
    monkeypatch.setenv("TIDEMILL_TOKEN", "of-the-environment-0")
    assert view._token(argparse.Namespace(token=None, token_file=None)) == "of-the-environment-0"
