"""``fedshift server`` and ``fedshift site``: a federation on real machines.

Flower is an extra: what needs it is imported when a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedshift.base.errors import ConfigError
from fedshift.base.extras import require_flower
from fedshift.cli import options as opt

server = typer.Typer(
    name="server", help="The server of a federation on real machines.", no_args_is_help=True
)
site = typer.Typer(
    name="site", help="One site of a federation on real machines.", no_args_is_help=True
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `init` made.")]
ALL = "0.0.0.0"  # noqa: S104  sites are other machines, and only registered ones get in, over TLS
Days = Annotated[int, typer.Option(help="How long the certificate holds.", min=1, max=3650)]
San = Annotated[
    list[str] | None,
    typer.Option(help="A further name or address for the certificate; repeatable."),
]


@server.callback()
@site.callback()
def prepare() -> None:
    """Ask for Flower first."""
    require_flower()


@server.command(name="init")
def server_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    host: Annotated[str, typer.Option(help="Name or address by which sites reach this machine.")],
    port: Annotated[int, typer.Option(help="TCP port.", min=1, max=65535)] = 8000,
    bind: Annotated[str, typer.Option(help="Address to listen on; default: all.")] = ALL,
    san: San = None,
    days: Days = 365,
) -> None:
    """Make certificates, settings and a systemd unit for the server."""
    from fedshift.deploy.folders import ServerSettings
    from fedshift.deploy.setup import init_server

    settings = ServerSettings(host=host, port=port, bind=bind, names=tuple(san or ()))
    paths = init_server(folder, settings, days)
    typer.echo(f"made {paths.root}")
    typer.echo(f"firewall: let the sites' machines reach TCP port {port} of {host}; no other port")
    typer.echo(f"give to every site: {paths.ca}, and the address {host}:{port}")
    typer.echo(f"as a service: {paths.unit}")
    typer.echo(f"next: fedshift server start {folder}")


@server.command(name="start")
def server_start(folder: Folder) -> None:
    """Run the server in the foreground until a signal ends it."""
    from fedshift.deploy.flower.daemons import start_server

    start_server(folder, typer.echo)


@server.command(name="register")
def server_register(
    folder: Folder,
    keys: Annotated[list[Path], typer.Argument(metavar="SITE.pub...", help="Sites' public keys.")],
) -> None:
    """Let sites in by their public keys; the server must be running."""
    from fedshift.deploy.credentials import read_public
    from fedshift.deploy.flower.control import Control
    from fedshift.deploy.folders import ServerPaths
    from fedshift.deploy.runs import register

    found = [read_public(path) for path in keys]
    with Control(ServerPaths(folder.absolute())) as control:
        for key in found:
            new = register(control, key)
            typer.echo(f"{key.site}: {'registered' if new else 'was registered already'}")


@server.command(name="remove")
def server_remove(
    folder: Folder, name: Annotated[str, typer.Argument(metavar="ID", help="A registered site.")]
) -> None:
    """Let a site in no more."""
    from fedshift.deploy.flower.control import Control
    from fedshift.deploy.folders import ServerPaths
    from fedshift.deploy.runs import chosen

    with Control(ServerPaths(folder.absolute())) as control:
        nodes = control.nodes()
        chosen(nodes, [name])
        control.unregister(nodes[name])
    typer.echo(f"{name}: removed")


@server.command(name="sites")
def server_sites(folder: Folder) -> None:
    """List registered sites, and whether they are online."""
    from fedshift.deploy.flower.control import Control
    from fedshift.deploy.folders import ServerPaths

    with Control(ServerPaths(folder.absolute())) as control:
        for name, node in sorted(control.nodes().items()):
            typer.echo(f"{name}: {node.status}")


@server.command(name="renew")
def server_renew(folder: Folder, san: San = None, days: Days = 365) -> None:
    """Make a new server certificate of the same authority; sites need nothing new."""
    from fedshift.deploy.folders import ServerPaths, read_server, write_settings
    from fedshift.deploy.setup import renew

    paths, settings = ServerPaths(folder.absolute()), read_server(folder)
    names = tuple(dict.fromkeys((*settings.names, *(san or ()))))
    settings = settings.model_copy(update={"names": names})
    renew(paths, settings, days)
    write_settings(paths.settings, settings, "Server of a federation; `fedshift server start`.")
    typer.echo(f"renewed for {days} days; start the server again to use it")


@server.command(name="run")
def server_run(
    folder: Folder,
    method: Annotated[str, typer.Option(help='Method, such as fedbn or "fedprox[mu=0.1]".')],
    settings: opt.Settings = None,
    without: opt.Without = None,
    scenario: Annotated[
        str | None, typer.Option(help="Take its settings; default: those of `sites`.")
    ] = None,
    scale: opt.Scale = None,
    backbone: opt.Backbone = None,
    rounds: opt.Rounds = None,
    clients_per_round: opt.ClientsPerRound = None,
    max_weight: opt.MaxWeight = None,
    seed: Annotated[int, typer.Option(help="Of weights, splits, cohorts and batches.")] = 0,
    allow: opt.Allow = None,
    grant: opt.Grant = None,
    sites: Annotated[
        list[str] | None, typer.Option("--site", help="Only these; default: all registered.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="A folder of unlabelled images on this machine, for methods that align the sites "
            "with a target; or `scenario`: its unseen domain."
        ),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds for a site to come online.")] = 120.0,
    on_loss: opt.OnLoss = "fail",
    timeout: opt.Timeout = None,
    min_sites: opt.MinSites = 1,
    out: Annotated[Path | None, typer.Option(help="Run directory; default DIR/runs/NAME.")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train over the registered sites; the same command again goes on where it stopped."""
    from fedshift.core.config import configure
    from fedshift.core.server import Policy
    from fedshift.deploy.flower.control import Control
    from fedshift.deploy.folders import ServerPaths
    from fedshift.deploy.runs import Terms, run
    from fedshift.deploy.session import SITES, deployed
    from fedshift.experiment.progress import ProgressBoard
    from fedshift.experiment.scenario import require_clear, scenario_from, split_settings

    own, changes = split_settings(
        settings,
        backbone=backbone,
        rounds=rounds,
        clients_per_round=clients_per_round,
        max_weight=max_weight,
    )
    require_clear(method, own)
    if target not in (None, "scenario"):
        target = str(Path(target).absolute())
    allowed = [*(allow or ()), *(grant or ())]
    chosen = deployed(scenario_from(scenario or SITES, scale, allowed, changes), target)
    config, _ = configure(method, chosen, seed=seed, settings=own, without=tuple(without or ()))
    here = ServerPaths(folder.absolute())
    path = out or here.runs / config.name
    policy = Policy(on_loss, timeout, min_sites)  # type: ignore[arg-type]  # it checks the word
    terms = Terms(tuple(sites or ()), wait, policy, target)
    with Control(here) as control, ProgressBoard(quiet=quiet) as board:
        result = run(control, config, path, terms, board.watch(config))
    opt.tell(result, path, as_json=as_json, quiet=quiet)


@site.command(name="init")
def site_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    name: Annotated[str, typer.Option("--id", help="The site's id, unique in the federation.")],
    address: Annotated[str, typer.Option("--server", help="HOST:PORT of the server.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt.")],
    data: Annotated[
        str,
        typer.Option(
            help="A folder of CLASS/*.jpg, a table, or `scenario`: the scenario's client called ID."
        ),
    ],
    domain: Annotated[
        str, typer.Option(help="How the images look, told to the server; default: the id.")
    ] = "",
    size: Annotated[int | None, typer.Option(help="Pixels of a side.", min=1)] = None,
    classes: Annotated[
        str, typer.Option(help="All classes of the federation, by commas; default: the folders.")
    ] = "",
    preparation: Annotated[
        Path | None, typer.Option(help="Of a table: the preparation.json that all sites share.")
    ] = None,
) -> None:
    """Make a key, settings and a systemd unit for a site."""
    from pydantic import ValidationError

    from fedshift.core.scenario import one_line
    from fedshift.deploy.folders import SiteSettings
    from fedshift.deploy.setup import init_site

    trial = data == "scenario"
    try:
        settings = SiteSettings(
            id=name,
            server=address,
            folder=None if trial else str(Path(data).absolute()),
            preparation=str(preparation.absolute()) if preparation else None,
            trial=trial,
            domain=domain,
            size=size,
            classes=tuple(c.strip() for c in classes.split(",") if c.strip()),
        )
    except ValidationError as error:
        raise ConfigError(one_line(error)) from None
    paths = init_site(folder, settings, ca)
    typer.echo(f"made {paths.root}")
    typer.echo(f"firewall: this machine must reach {address} (TCP); nothing needs to come in")
    typer.echo(f"send to the server's operator: {paths.public_key(name)}")
    typer.echo(f"who runs: fedshift server register DIR {name}.pub")
    typer.echo(f"as a service: {paths.unit}")
    typer.echo(f"next: fedshift site check {folder}")


@site.command(name="check")
def site_check(folder: Folder) -> None:
    """Check key, data, port, certificate, versions and registration."""
    from fedshift.deploy.checks import check_site
    from fedshift.deploy.folders import SitePaths

    for line in check_site(SitePaths(folder.absolute())):
        typer.echo(f"ok  {line}")


@site.command(name="start")
def site_start(folder: Folder) -> None:
    """Check, then serve the federation in the foreground until a signal ends it."""
    from fedshift.deploy.flower.daemons import start_site

    start_site(folder, typer.echo)
