"""The commands as an operator types them: what they make, what they print, what they refuse."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

import pytest

import fedshift
from fedshift.base.errors import ConfigError, DataError, RunError
from fedshift.cli import main
from fedshift.deploy import checks
from fedshift.deploy.checks import About, Data
from fedshift.deploy.flower.daemons import free_port, supervise
from fedshift.deploy.folders import SitePaths, read_site


def run(capsys, *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in args])
    out = capsys.readouterr()
    return int(stop.value.code or 0), out.out, out.err


def refused(capsys, *args: object) -> str:
    """The one line of a command that exits with code 2."""
    code, _, error = run(capsys, *args)
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1, error
    return error


@pytest.fixture
def server(capsys, tmp_path: Path) -> Path:
    folder = tmp_path / "server"
    host = ("--host", "fl.example.org", "--san", "10.0.0.9", "--port", "8443")
    code, out, _ = run(capsys, "server", "init", folder, *host)
    assert code == 0
    assert "let the sites' machines reach TCP port 8443 of fl.example.org; no other port" in out
    assert f"next: fedshift server start {folder}\n" in out
    return folder


def site_args(made: Path, folder: Path, **changes: str) -> list[object]:
    given = {"id": "berlin", "server": "fl.example.org:8443", "ca": made / "ca.crt", "data": "."}
    flags = [x for key, value in (given | changes).items() for x in (f"--{key}", value)]
    return ["site", "init", folder, *flags]


def test_a_site_with_a_table_is_made_and_its_rows_are_counted(
    capsys, server, tmp_path: Path, monkeypatch
):
    from fedshift.data.catalogue import Variant
    from fedshift.data.library.datasets import card_of
    from fedshift.data.library.prepare import store_of

    monkeypatch.setenv("FEDSHIFT_HOME", str(tmp_path / "home"))
    table, folder = tmp_path / "rows.csv", tmp_path / "site"
    lines = [f"{('no', 'yes')[i % 3 == 0]};{i * i % 13},5" for i in range(30)]
    table.write_text("\n".join(["ill;x", *lines]))
    assert run(capsys, "data", "add", "agreed", table, "--label", "ill")[0] == 0
    agreed = store_of(card_of("agreed"), Variant()) / "preparation.json"
    args = site_args(server, folder, data=str(table), preparation=str(agreed))
    assert run(capsys, *args)[0] == 0
    paths = SitePaths(folder)
    data = checks.own_data(paths, read_site(folder))
    assert (data.classes, data.shape) == (("no", "yes"), (1,))
    assert checks.describe(data) == "30 rows of 1 numbers: no 20, yes 10"


def test_init_writes_what_was_asked_for(capsys, server, tmp_path: Path):
    settings = tomllib.loads((server / "server.toml").read_text())
    assert settings["host"] == "fl.example.org"
    assert settings["port"] == 8443
    assert settings["names"] == ["10.0.0.9"]
    folder = tmp_path / "site"
    args = site_args(server, folder, data=str(tmp_path), classes="cat, dog", size="32")
    code, out, _ = run(capsys, *args)
    assert code == 0
    assert f"send to the server's operator: {folder / 'berlin.pub'}\n" in out
    found = read_site(folder)
    assert (found.classes, found.size, found.folder) == (("cat", "dog"), 32, str(tmp_path))
    assert found.address == ("fl.example.org", 8443)
    assert (folder / "ca.crt").read_bytes() == (server / "ca.crt").read_bytes()


def test_a_folder_that_exists_is_left_alone(capsys, server):
    before = {p.name: p.read_bytes() for p in server.iterdir() if p.is_file()}
    line = refused(capsys, "server", "init", server, "--host", "x")
    assert "exists already and is not empty; choose another folder" in line
    line = refused(capsys, *site_args(server, server))
    assert "exists already" in line
    assert before == {p.name: p.read_bytes() for p in server.iterdir() if p.is_file()}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"server": "fl.example.org"}, "write HOST:PORT"),
        ({"server": "fl.example.org:99999"}, "write HOST:PORT"),
        ({"id": "a/b"}, "cannot be a site's id"),
        ({"ca": "missing.crt"}, "cannot read missing.crt: No such file or directory"),
        ({"ca": __file__}, "is not a certificate"),
    ],
)
def test_site_init_with_bad_input(changes, told, capsys, server, tmp_path: Path):
    assert told in refused(capsys, *site_args(server, tmp_path / "site", **changes))
    assert not (tmp_path / "site").exists()


def test_a_host_that_is_no_name_is_refused(capsys, tmp_path: Path):
    line = refused(capsys, "server", "init", tmp_path / "s", "--host", "münchen.example")
    assert "is neither a host name nor an address" in line
    assert not (tmp_path / "s").exists()


def test_a_port_that_is_taken_is_told(capsys, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        bind = ("--host", "localhost", "--bind", "127.0.0.1", "--port", port)
        assert run(capsys, "server", "init", tmp_path / "s", *bind)[0] == 0
        line = refused(capsys, "server", "start", tmp_path / "s")
    assert f"cannot listen on 127.0.0.1:{port}: address already in use; stop what uses it" in line


def test_an_expired_certificate_is_told_at_the_server(capsys, server, monkeypatch):
    monkeypatch.setattr("fedshift.deploy.credentials.days_left", lambda *_: -1.0)
    line = refused(capsys, "server", "start", server)
    assert "the server's certificate expired on" in line
    assert "fedshift server renew" in line


def test_a_server_that_does_not_run_is_told(capsys, server):
    (server / "server.toml").write_text(f'host = "localhost"\nport = {free_port()}\n')
    assert "does not answer; run `fedshift server start" in refused(
        capsys, "server", "sites", server
    )
    line = refused(capsys, "server", "run", server, "--method", "fedavg")
    assert "does not answer" in line


def test_a_rate_that_may_be_the_servers_is_asked_for(capsys, server):
    line = refused(capsys, "server", "run", server, "--method", "fedavg", "--set", "lr=0.1")
    assert "'lr' is ambiguous; say scenario.lr or add.lr" in line


def test_settings_that_cannot_be_read_are_told(capsys, server, tmp_path: Path):
    assert "does not exist; `fedshift server init` makes" in refused(
        capsys, "server", "start", tmp_path / "nowhere"
    )
    (server / "server.toml").write_text("host = \n")
    assert "server.toml cannot be read" in refused(capsys, "server", "start", server)
    (server / "server.toml").write_text('host = "x"\nport = 70000\n')
    assert "port is 70000" in refused(capsys, "server", "start", server)


def test_renew_keeps_the_names_and_adds_new_ones(capsys, server):
    code, out, _ = run(capsys, "server", "renew", server, "--san", "other.example", "--days", "99")
    assert (code, out) == (0, "renewed for 99 days; start the server again to use it\n")
    assert tomllib.loads((server / "server.toml").read_text())["names"] == [
        "10.0.0.9",
        "other.example",
    ]


def test_a_missing_extra_is_told(capsys, server, monkeypatch):
    monkeypatch.setattr("fedshift.base.extras.is_installed", lambda module: False)
    line = refused(capsys, "server", "start", server)
    assert 'needs Flower, which is not installed; pip install "fedshift[flower]"' in line


@pytest.fixture
def paths(capsys, server, tmp_path: Path) -> SitePaths:
    assert run(capsys, *site_args(server, tmp_path / "site"))[0] == 0
    return SitePaths(tmp_path / "site")


def test_what_the_server_says_must_fit_the_site(paths):
    settings, version = read_site(paths.root), fedshift.__version__
    data = Data(("cat", "dog"), (3, 8, 8), {"cat": 1, "dog": 1})
    with pytest.raises(ConfigError, match=r"this site has fedshift .*, the server 9\.9; pip inst"):
        checks.fits(paths, settings, About("9.9", "offline"), data)
    with pytest.raises(ConfigError, match=r"does not know this site's key; send .*berlin\.pub"):
        checks.fits(paths, settings, About(version, "unknown"), data)
    with pytest.raises(DataError, match=r'has classes \["cat", "dog"\], the federation \["cow"\]'):
        checks.fits(paths, settings, About(version, "offline", ("cow",)), data)
    with pytest.raises(DataError, match=r"shape .*, the federation \[3, 9, 9\]; .*or size in"):
        checks.fits(paths, settings, About(version, "offline", data.classes, (3, 9, 9)), data)
    checks.fits(paths, settings, About(version, "registered", data.classes, data.shape), data)


def test_the_check_describes_the_data():
    data = Data(("cat", "dog"), (3, 8, 9), {"cat": 2, "dog": 5})
    assert checks.describe(data) == "7 images of 9x8, cat 2, dog 5"


def test_a_daemon_that_ends_takes_the_others_with_it(tmp_path: Path):
    mark = tmp_path / "ended"
    commands = {
        "first": ["sh", "-c", f"trap 'touch {mark}; exit' TERM; while :; do sleep 0.1; done"],
        "second": ["sh", "-c", "sleep 0.5; exit 7"],
    }
    with pytest.raises(RunError, match=r"the second ended \(exit code 7\)"):
        supervise(commands, {"PATH": "/bin:/usr/bin"}, lambda: True)
    assert mark.exists()
    assert mark.stat().st_mode & 0o077 == 0, "daemons write private files"


def test_tables_of_sites_are_typed_as_the_documentation_says(
    capsys, server, tmp_path: Path, monkeypatch
):
    from fedshift.deploy.tables import schema_of_run

    table = tmp_path / "rows.csv"
    table.write_text("num,age\n" + "".join(f"{i % 2},{i}\n" for i in range(12)))
    code, _, _ = run(capsys, *site_args(server, tmp_path / "site", data=str(table)))
    assert code == 0
    assert (
        "data: 12 rows of 2 columns; a run's" in run(capsys, "site", "check", tmp_path / "site")[1]
    )
    asked = []

    def stop(_control, config, *_rest):
        asked.append(config)
        raise RunError("enough")

    monkeypatch.setattr("fedshift.deploy.runs.run", stop)
    options = (
        "data.label=num", "data.statistics=site", "data.drop=a,b", "data.categorical=c",
        "data.missing=-9", "data.rename_label=ill=1",
    )  # fmt: skip
    typed = [word for option in options for word in ("--set", option)]
    line = refused(capsys, "server", "run", server, "--method", "fedavg", "--backbone", "linear",
                   *typed)  # fmt: skip
    assert "enough" in line
    schema = schema_of_run(asked[0])
    assert (schema.label, schema.statistics, schema.drop) == (("num",), "site", ("a", "b"))
    assert (schema.categorical, schema.missing) == (("c",), ("-9",))
    assert schema.rename_label == {"ill": "1"}
    scenario = asked[0].scenario.change(data_options={"labl": "num"})
    with pytest.raises(ConfigError, match=r"labl of a table: .*; known: label"):
        schema_of_run(asked[0].model_copy(update={"scenario": scenario}))
