"""The viewer's server: who may request what, and how it answers nonsense."""

from __future__ import annotations

import contextlib
import gzip
import html
import http.client
import json
import signal
import socket
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pytest
import tidemill as tm
from tidemill.ml import KMeans
from tidemill.viz import FrameError, FrameReader, FrameWriter, Server, _http
from tidemill.viz._demo import write_market

pytestmark = pytest.mark.skipif(
    not (_http.STATIC / "index.html").exists(), reason="the page is not built; `make setup` does it"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_market(tmp_path / "market", points=40, frames=3)
    (tmp_path / "market" / "secret.txt").write_text("not for the page")
    return tmp_path / "market"


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", token: str | None = "", **more: Any) -> tuple[int, bytes]:
    """Status and body of an answer; with the right token unless given another."""
    host, port = server._http.server_address[:2]
    connection = http.client.HTTPConnection(str(host), int(port), timeout=launched.PATIENCE_S)
    headers = {} if token is None else {"Authorization": f"Bearer {token or server.token}"}
    connection.request(method, path, headers={**headers, **more.pop("headers", {})}, **more)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    connection.close()
    return answer.status, body


def test_only_who_has_the_token_sees_data(server: Server) -> None:
    """Any program of any user of the machine can connect to a port on loopback."""
    for path in ("index", "files/frame-000000.safetensors", "selections", "trajectories?rows=0", "nothing"):
        for token in (None, "x", server.token[:-1], server.token + "x", "ü"):
            encoded = token if token is None else token.encode().decode("latin-1")
            assert ask(server, f"/api/{path}", token=encoded)[0] == 401, path
        # It is not a cookie, nor part of a URL that a foreign page could make a browser request.
        assert ask(server, f"/api/{path}&token={server.token}", token=None)[0] == 401
    assert ask(server, "/", token=None)[0] == 200


def test_head_is_what_get_says_without_the_answer(server: Server) -> None:
    """Proxies check this way whether a server is alive, and were told that it cannot answer."""
    frame = "/api/files/frame-000000.safetensors"
    for path, token in (
        ("/", None),
        ("/api/index", ""),
        (frame, ""),
        (f'{frame}?tensors=["position"]', ""),
        (frame, "x"),
    ):
        status, body = ask(server, path, "HEAD", token=token)
        assert (status, body) == (ask(server, path, token=token)[0], b"")
    # After it, another request on the same connection is answered.
    host, port = server._http.server_address[:2]
    connection = http.client.HTTPConnection(str(host), int(port), timeout=launched.PATIENCE_S)
    for method in ("HEAD", "GET", "HEAD", "GET"):
        connection.request(method, frame, headers={"Authorization": f"Bearer {server.token}"})
        answer = connection.getresponse()
        length = answer.getheader("Content-Length")
        assert length is not None and int(length) > 100
        assert len(answer.read()) == (int(length) if method == "GET" else 0)
    connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/api/files/secret.txt",
        "/api/files/../market/secret.txt",
        "/api/files/%2e%2e/secret.txt",
        "/api/files/frame-000099.safetensors",
        "/../_server.py",
        "/assets/../../_server.py",
        "/%2e%2e/_server.py",
        "//etc/passwd",
        "/index.htm",
    ],
)
def test_no_other_file_leaves_the_folder(server: Server, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_frames_and_trajectories_are_what_lies_on_disk(server: Server, folder: Path) -> None:
    status, body = ask(server, "/api/files/frame-000001.safetensors")
    assert (status, body) == (200, (folder / "frame-000001.safetensors").read_bytes())
    status, body = ask(server, "/api/trajectories?rows=3,1")
    length = int.from_bytes(body[:8], "little")
    assert json.loads(body[8 : 8 + length])["trajectories"]["shape"] == [3, 2, 3]
    path = np.frombuffer(body[8 + length :], "<f4").reshape(3, 2, 3)
    np.testing.assert_array_equal(path, FrameReader(folder).trajectories([3, 1]))
    for rows in ("", "a", "-1", "1,,2", ",".join(["1"] * 1000), "9" * 40):
        assert ask(server, f"/api/trajectories?rows={rows}")[0] == 400, rows
    assert ask(server, "/api/trajectories?rows=4000000000")[0] == 200


def test_what_gets_smaller_is_sent_compressed_to_who_takes_it(tmp_path: Path) -> None:
    """For frames of few points, headers and codes are a large part; for many, positions are nearly all, and compressing
    them takes long.
    """
    rng = np.random.default_rng(0)
    few, many = tmp_path / "few", tmp_path / "many"
    for folder, points in ((few, 200), (many, 20_000)):
        with FrameWriter(folder) as writer:
            for _ in range(2):
                writer.write_frame(rng.normal(size=(points, 3)), groups={"kind": rng.integers(3, size=points)})

    def sent(server: Server, path: str, **headers: str) -> tuple[str | None, bytes]:
        host, port = server._http.server_address[:2]
        connection = http.client.HTTPConnection(str(host), int(port), timeout=launched.PATIENCE_S)
        connection.request("GET", f"/api/{path}", headers={"Authorization": f"Bearer {server.token}", **headers})
        answer = connection.getresponse()
        found = answer.getheader("Content-Encoding"), answer.read()
        connection.close()
        return found

    def part(*names: str) -> str:
        return f"files/frame-000001.safetensors?tensors={urllib.parse.quote(json.dumps(names))}"

    takes = {"Accept-Encoding": "gzip, deflate"}
    with Server(few) as server:
        for path in ("index?from=0", part("position", "group.kind")):
            encoding, body = sent(server, path, **takes)
            assert encoding == "gzip" and (None, gzip.decompress(body)) == sent(server, path)
            assert len(body) < len(sent(server, path)[1])
        # Nothing gets longer.
        encoding, body = sent(server, part("position"), **takes)
        assert len(body) <= len(sent(server, part("position"))[1])
    with Server(many) as server:
        assert sent(server, part("position", "group.kind"), **takes)[0] is None


def test_news_come_when_there_are_some(server: Server, folder: Path) -> None:
    """A waiting page must learn of a frame when it is written, and not before it is complete."""
    _, whole = ask(server, "/api/index?from=0")
    assert whole == (folder / "index.jsonl").read_bytes()
    assert ask(server, f"/api/index?from={len(whole)}") == (200, b"")
    answers: list[tuple[int, bytes]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(server, f"/api/index?from={len(whole)}&wait=30")))
    asking.start()
    with (folder / "index.jsonl").open("ab") as file:
        file.write(b'{"kind":')
        file.flush()
        assert ask(server, f"/api/index?from={len(whole)}") == (200, b"")
        file.write(b'"other"}\n')
    asking.join(launched.PATIENCE_S)
    assert answers == [(200, b'{"kind":"other"}\n')]
    assert ask(server, "/api/index?from=999999")[0] == 409
    assert ask(server, "/api/index?from=-1")[0] == 400


def test_groups_are_stored_whole_or_not_at_all(server: Server, folder: Path) -> None:
    good = [{"name": "<i>mine</i>", "rows": [1, 2]}]
    assert ask(server, "/api/selections") == (200, b"[]")
    assert ask(server, "/api/selections", "PUT", body=json.dumps(good))[0] == 200
    for bad in (
        b"{",
        b"7",
        b'[{"name":"","rows":[]}]',
        b'[{"name":"a","rows":[-1]}]',
        b'[{"name":"a","rows":[true]}]',
        b'[{"name":"a","rows":[40]}]',
        b"[" * 100_000,
    ):
        assert ask(server, "/api/selections", "PUT", body=bad)[0] == 400, bad[:30]
    assert ask(server, "/api/selections", "PUT", headers={"Content-Length": str(1 << 40)})[0] == 413
    assert ask(server, "/api/selections", "PUT", headers={"Content-Length": "-1"})[0] == 413
    assert ask(server, "/api/selections", "PUT", headers={"Content-Length": "many"})[0] == 413
    assert ask(server, "/api/index", "PUT", body=b"[]")[0] == 404
    assert json.loads(ask(server, "/api/selections")[1]) == good
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_one_group_is_put_or_deleted_and_the_others_stay(server: Server, folder: Path) -> None:
    """Two pages save at the same time: with whole lists the second would remove what the first has added."""
    assert ask(server, "/api/selections/first", "PUT", body=b'{"rows":[1,2]}')[0] == 200
    names = [f"<i>{number}</i>/ä%" for number in range(8)]

    def put(name: str) -> None:
        for _ in range(5):
            path = f"/api/selections/{urllib.parse.quote(name, safe='')}"
            assert ask(server, path, "PUT", body=json.dumps({"rows": [3]}))[0] == 200

    pages = [threading.Thread(target=put, args=(name,)) for name in names]
    for page in pages:
        page.start()
    for page in pages:
        page.join(launched.PATIENCE_S)
    groups = json.loads(ask(server, "/api/selections")[1])
    assert groups[0] == {"name": "first", "rows": [1, 2]}
    assert sorted(group["name"] for group in groups[1:]) == names
    status, body = ask(server, "/api/selections/first", "PUT", body=b'{"rows":[7]}')
    assert (status, json.loads(body)[0]) == (200, {"name": "first", "rows": [7]})
    for _ in "again", "when it is gone":
        status, body = ask(server, f"/api/selections/{urllib.parse.quote(names[0], safe='')}", "DELETE")
        assert status == 200 and names[0] not in body.decode() and len(json.loads(body)) == 8
    assert json.loads((folder / "selections.json").read_text()) == json.loads(body)
    for path, text in (
        ("long" * 21, b'{"rows":[1]}'), ("a", b'{"rows":[40]}'), ("a", b"[1]"), ("a", b'{"rows":7}'), ("a", b"{"),
    ):  # fmt: skip
        assert ask(server, f"/api/selections/{path}", "PUT", body=text)[0] == 400, text
    assert ask(server, "/api/selections", "DELETE")[0] == 404
    assert ask(server, "/api/selections/a", "GET")[0] == 404
    for number in range(56):
        assert ask(server, f"/api/selections/{number}", "PUT", body=b'{"rows":[1]}')[0] == 200
    assert ask(server, "/api/selections/one-too-many", "PUT", body=b'{"rows":[1]}')[0] == 400
    assert len(json.loads(ask(server, "/api/selections")[1])) == 64


def test_a_page_with_older_frames_is_never_given_newer_ones(server: Server, folder: Path) -> None:
    """Rewritten frames have the same names: mixed with the older ones, points would be where they never were."""
    header = json.loads(ask(server, "/api/index?from=0")[1].splitlines()[0])
    run, size = header["run"], (folder / "index.jsonl").stat().st_size
    assert FrameReader(folder).run == run
    asks = (
        "index?from=0", "files/frame-000000.safetensors", "files/points-000000.safetensors",
        "files/frame-000000.safetensors?tensors=[%22position%22]", "trajectories?rows=1", "points?rows=1", "selections",
    )  # fmt: skip

    def answers(run: str) -> set[int]:
        return {ask(server, f"/api/{path}{'&' if '?' in path else '?'}run={run}")[0] for path in asks}

    assert answers(run) == {200}
    waited: list[tuple[int, bytes]] = []
    waiting = threading.Thread(target=lambda: waited.append(ask(server, f"/api/index?from={size}&wait=30&run={run}")))
    waiting.start()
    write_market(folder, points=40, frames=9, seed=1)
    waiting.join(launched.PATIENCE_S)
    assert waited[0][0] == 409 and b"rewritten; reload the page" in waited[0][1]
    assert answers(run) == {409}
    assert ask(server, f"/api/selections/mine?run={run}", "PUT", body=b'{"rows":[1]}')[0] == 409
    assert ask(server, f"/api/selections/mine?run={run}", "DELETE")[0] == 409
    assert not (folder / "selections.json").exists()
    now = FrameReader(folder).run
    assert now is not None and now != run and answers(now) == {200}
    # Appending to the frames keeps the run, and a page that does not know of runs is answered as before.
    with FrameWriter(folder, mode="a") as writer:
        writer.write_frame([[0.0, 0.0]], ids=["new"])
    assert answers(now) == {200}
    assert ask(server, "/api/files/frame-000009.safetensors")[0] == 200
    # While they are being rewritten there is no index.
    (folder / "index.jsonl").rename(folder / "index.old")
    assert answers(now) == {409}
    assert ask(server, "/api/index?from=0") == (200, b"")


def test_other_hosts_want_a_token_that_was_chosen(folder: Path) -> None:
    with pytest.raises(ValueError, match="--token"):
        Server(folder, host="0.0.0.0")
    with pytest.raises(ValueError, match="at least 16"):
        Server(folder, token="short")
    with Server(folder, host="0.0.0.0", token="0123456789abcdef") as server:
        assert server.url.endswith("?token=0123456789abcdef")


def test_the_command_explains_what_it_cannot_show(tmp_path: Path) -> None:
    for words, said in (
        ([tmp_path / "absent"], "is not a folder"),
        ([tmp_path], "there is no index.jsonl"),
        ([tmp_path / "d", "--demo", "--points", "9", "--frames", "2", "--host", "0.0.0.0"], "--token"),
        ([tmp_path / "d", "--demo"], "leave out --demo"),
        ([tmp_path / "d", "--port", "99999"], "from 0 to 65535"),
    ):
        ended = launched.run("view", *words)
        assert ended.returncode in (1, 2) and said in ended.stderr.decode(), (words, ended)
        assert b"Traceback" not in ended.stderr
    running = launched.start("view", tmp_path / "d")
    assert running.stdout is not None and b"http://127.0.0.1:" in running.stdout.readline()
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=launched.PATIENCE_S)[1] == b"" and running.returncode == 0


def test_arrays_are_shown_from_a_program() -> None:
    """What `show` makes of arrays: principal components for many columns, the same for all frames."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6)) * [1, 9, 1, 5, 1, 3]
    view = tm.viz.show(frames=[x, 2 * x], groups=np.arange(50) % 3, values=x[:, 0], title="<six>")
    try:
        assert view.url in view._repr_html_().replace("&amp;", "&") and "<iframe" in view._repr_html_()
        reader = FrameReader(view._server.folder)
        assert (len(reader), reader.title, reader.categories) == (2, "<six>", {"group": ["0", "1", "2"]})
        wide = np.ptp(reader[0].positions, axis=0)
        assert wide[0] > wide[1] > wide[2]
        centre = x.mean(axis=0)
        lengths = np.linalg.norm(reader[0].positions, axis=1)
        assert (lengths <= np.linalg.norm(x - centre, axis=1) + 0.01).all()
    finally:
        view.close()
    # A table, and a query that produces one.
    table = tm.Table.from_numpy({"x": x[:, 0], "y": x[:, 1]})
    for given in (table, tm.from_arrow(table)):
        view = tm.viz.show(given)
        np.testing.assert_allclose(FrameReader(view._server.folder)[0].positions[:, :2], x[:, :2], atol=0.01)
        view.close()
    x[7, 5] = np.nan
    for options, said in (({"points": x}, "row 7 is not finite"), ({"frames": [x * 0, x[:, :5]]}, "row 7|columns")):
        with pytest.raises(ValueError, match=said):
            tm.viz.show(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="frame 1, row 7 is not finite"):
        tm.viz.show(frames=[np.zeros((50, 6)), x])
    with pytest.raises(ValueError, match="frame 1 has 5 columns, the first 6"):
        tm.viz.show(frames=[np.zeros((50, 6)), np.zeros((50, 5))])
    for wrong in ({}, {"points": x, "frames": [x]}):
        with pytest.raises(ValueError, match="either points or frames"):
            tm.viz.show(**wrong)
    with pytest.raises(FrameError, match="3 points"):
        tm.viz.show([[0], [1], [2]], groups=["a"])


def test_columns_of_a_table_are_shown_by_name(tmp_path: Path) -> None:
    """Coordinates are the numeric columns not named for anything else; an error explains a wrong name."""
    columns = {
        "id": ["a", "b", "c"],
        "x": [0.0, 1.0, 2.0],
        "y": [5, 6, 9],
        "cluster": [1, 0, 1],
        "note": ["u", "v", "w"],
    }
    data = tm.from_dict({**columns, "size": [1.5, None, 2.5]})
    tables = [data, data.collect()]
    with contextlib.suppress(ImportError):
        tables.append(data.to_arrow())
    for given in tables:
        view = tm.viz.show(given, ids="id", labels="note", groups=["cluster"], values={"Size": "size"})
        try:
            reader = FrameReader(view._server.folder)
            rows = [reader.ids.index(name) for name in columns["id"]]
            frame = reader[0]
            np.testing.assert_allclose(frame.positions[rows][:, 0], columns["x"], atol=0.01)
            np.testing.assert_allclose(frame.positions[rows][:, 1], columns["y"], atol=0.01)
            assert [frame.groups["cluster"][row] for row in rows] == ["1", "0", "1"]
            np.testing.assert_allclose(frame.values["Size"][rows], [1.5, np.nan, 2.5], atol=0.01)
            assert [reader.labels[row] for row in rows] == columns["note"]
        finally:
            view.close()
    page = tmp_path / "page.html"
    tm.viz.save_html(page, data, ids="id", groups="cluster", coordinates=["y", "x"], title="By name")
    text = page.read_text()
    assert "frame-000000.safetensors" in text and "<script" in text
    for options, said in (
        ({"ids": "name"}, r"no column 'name'; there are 'id', 'x', 'y', 'cluster', 'note', 'size'"),
        ({"coordinates": ["x", "note"]}, "column 'note' does not hold numbers, so it cannot be a coordinate"),
        ({"values": "note"}, "column 'note' does not hold numbers: show it with groups="),
        ({"groups": "cluster"}, "row 1 is not finite"),
    ):
        with pytest.raises(ValueError, match=said):
            tm.viz.show(data.sort("id"), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without columns: give a DataSet or a table"):
        tm.viz.show(np.eye(3), ids="id")
    with pytest.raises(ValueError, match="names of columns work with points, not with frames"):
        tm.viz.show(frames=[np.eye(3)], groups="cluster")


def test_what_changes_from_frame_to_frame_is_shown() -> None:
    """Such as the clusters of each pass of a clustering: once, categories were those of the first frame, and frames
    only had numbers.
    """
    x = np.eye(4, 3)
    passes = [["a", "a", "b", "b"], ["a", "b", "b", "b"], ["b", "b", "b", "b"]]
    distance = np.arange(12.0).reshape(3, 4)
    groups = {"cluster": passes, "kind": ["u", "v", "u", "v"]}
    view = tm.viz.show(frames=[x, x, x], times=["start", 1, 2.5], groups=groups, values=distance)
    try:
        reader = FrameReader(view._server.folder)
        assert reader.times == ["start", "1", "2.5"]
        assert [frame.groups["cluster"] for frame in reader] == passes
        assert [frame.groups["kind"] for frame in reader] == [groups["kind"]] * 3
        np.testing.assert_allclose([frame.values["value"] for frame in reader], distance, rtol=1e-4)
    finally:
        view.close()


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "tidemill"])
def test_tables_of_groups_and_values_are_their_columns(library: str) -> None:
    columns: dict[str, list[Any]] = {"kind": ["u", "v", "u"], "side": ["l", "r", "r"]}
    if library == "tidemill":
        table = tm.from_dict(columns).collect()
    else:
        made = pytest.importorskip(library)
        table = made.table(columns) if library == "pyarrow" else made.DataFrame(columns)
    view = tm.viz.show(np.eye(3), groups=table)
    try:
        assert FrameReader(view._server.folder)[0].groups == columns
    finally:
        view.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frames": [np.eye(3)] * 2, "times": ["a"]}, "times has 1 names for 2 frames"),
        ({"points": np.eye(3), "times": ["a", "b"]}, "times has 2 names for 1 frame$"),
        ({"frames": [np.eye(3)] * 2, "groups": [[1, 2, 3]]}, "group 'group' has arrays for 1 frames, but there are 2"),
        ({"frames": [np.eye(3)] * 2, "values": {"v": np.eye(3)}}, "value 'v' has arrays for 3 frames"),
        ({"points": np.eye(3), "groups": [[1, 2, 3]]}, r"grouping 'group' has shape \(1, 3\) for 3 points"),
        ({"points": [1, 2]}, r"points has shape \(2,\), not \(n, d\), .*reshape\(-1, 1\)"),
        ({"frames": np.eye(3)}, r"frame 0 has shape \(3,\)"),
        ({"frames": []}, "frames is empty"),
        ({"points": KMeans(2)}, "a KMeans is not an array of numbers .* groups=estimator.labels_"),
        ({"points": [[1, 2], [3]]}, "a list is not an array of numbers"),
        ({"frames": [np.eye(3), np.eye(3)[:1]], "ids": [["a", "b", "c"], ["a"]]}, "ids is one list .* FrameWriter"),
        ({"points": 1e300 * np.eye(9)}, r"points: a coordinate of point 0 is 1e\+300"),
    ],
)
def test_what_cannot_be_shown_is_explained(options: dict[str, Any], said: str) -> None:
    """Without NumPy's own errors and warnings, which name nothing that the caller gave."""
    with pytest.raises((ValueError, TypeError), match=said):
        tm.viz.show(**options)


def test_a_view_is_saved_and_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that needs no server: as a file, and as part of a notebook, whose text it must not break out of."""
    view = tm.viz.show(np.eye(3), ids=['"><b>', "b", "c"], title='"</iframe>', embed=True)
    try:
        view.save_html(tmp_path / "view.html")
        shown = view._repr_html_()
        assert shown.startswith('<iframe srcdoc="') and view.url not in shown
        assert shown.count('"') == 8 and shown.count("<") == 2
        assert html.unescape(shown.split('"')[1]) == (tmp_path / "view.html").read_text()
        assert 'data-file="frame-000000.safetensors"' in (tmp_path / "view.html").read_text()
    finally:
        view.close()
    monkeypatch.setattr("tidemill.viz._show._EMBED_BYTES_MAX", 1000)
    with pytest.raises(FrameError, match="can be part of a notebook: show fewer"):
        tm.viz.show(np.eye(3), embed=True)


def test_a_folder_is_shown_while_a_writer_fills_it(tmp_path: Path) -> None:
    """The first frame may come after the page."""
    writer = FrameWriter(tmp_path)
    with Server(tmp_path) as server:
        begin = ask(server, "/api/index?from=0")[1]
        writer.write_frame([[0.0, 0.0]])
        more = ask(server, f"/api/index?from={len(begin)}&wait=5")[1]
    assert [json.loads(line)["kind"] for line in more.splitlines()] == ["points", "frame"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_whatever_its_clients_do(how: signal.Signals, folder: Path) -> None:
    """Neither a client that holds a connection open, nor a shell that ignores SIGINT, may keep it from ending."""
    with (folder / "frame-000099.safetensors").open("wb") as file:
        file.truncate(256 << 20)
    token = "a-token-for-these-tests"
    # As scripts start background processes.
    shell = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    view = launched.command("view", folder, "--token", token)
    running = subprocess.Popen([*shell, *view], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    url = urllib.parse.urlsplit(running.stdout.readline().decode().split()[-1])
    assert url.port is not None and running.stdout.readline() == b"Ctrl-C ends it\n"
    clients = []
    for said, answered in {
        # Nothing at all, and half a request.
        "": False,
        "GET /api/index HTTP/1.1\r\n": False,
        # A client that waits for news, one that does not read its answer, one that does not send what it announced, one
        # that was refused and sends on.
        "GET /api/index?from={size}&wait=30 HTTP/1.1\r\n{head}\r\n": False,
        "GET /api/files/frame-000099.safetensors HTTP/1.1\r\n{head}\r\n": True,
        "PUT /api/selections HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\n[": False,
        "PUT /api/nothing HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\n[": True,
        # A client whose connection stays open for the next request.
        "GET / HTTP/1.1\r\n{head}\r\n": True,
    }.items():
        client = socket.create_connection(("127.0.0.1", url.port), timeout=launched.PATIENCE_S)
        head = f"Host: {url.netloc}\r\nAuthorization: Bearer {token}\r\n"
        client.sendall(said.format(head=head, size=(folder / "index.jsonl").stat().st_size).encode())
        if answered:
            assert client.recv(9) == b"HTTP/1.1 "
        clients.append(client)
    running.send_signal(how)
    printed, errors = running.communicate(timeout=launched.PATIENCE_S)
    # Nor was it ended by its own watchdog.
    assert (running.returncode, printed, errors) == (0, b"", b"")
    for client in clients:
        client.close()
