"""The commands. Each is a thin shell around the Python API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.version import __version__
from fedshift.cli import options as opt
from fedshift.cli.catalogue import catalogue, print_catalogue
from fedshift.cli.data import app as data_app
from fedshift.cli.deploy import server as server_app
from fedshift.cli.deploy import site as site_app
from fedshift.core.config import configure
from fedshift.core.registry import METHODS
from fedshift.core.server import Policy
from fedshift.engine.compute import Compute
from fedshift.engine.federation import holdings
from fedshift.experiment.compare import compare as compare_runs
from fedshift.experiment.compare import read_comparison
from fedshift.experiment.listener import Listener
from fedshift.experiment.progress import Board
from fedshift.experiment.run import execute, load_result
from fedshift.experiment.scenario import placed, split_settings
from fedshift.experiment.session import Options
from fedshift.report import figures, formats, html, screen
from fedshift.report.partition import plot as draw_partition
from fedshift.report.partition import render_table
from fedshift.report.results import Comparison
from fedshift.runs.record import read_config
from fedshift.transports import TRANSPORTS

app = typer.Typer(
    name="fedshift",
    help="Federated learning under domain shift.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


app.add_typer(data_app, name="data")


app.add_typer(server_app, name="server")


app.add_typer(site_app, name="site")


CORE = ("fdse", "f2dc", "fedka", "csac", "feddebias")  # shown in the demo once they are registered


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Federated learning under domain shift."""
    if version:
        typer.echo(f"fedshift {__version__}")


@app.command()
def run(
    method: Annotated[
        str | None,
        typer.Option(help='Method, such as fedbn, "fedprox[mu=0.1]" or "fedavg + mixup".'),
    ] = None,
    settings: opt.Settings = None,
    without: Annotated[list[str] | None, typer.Option(help="Leave out a part; repeatable.")] = None,
    scenario: Annotated[str, typer.Option(help="See `fedshift list scenarios`.")] = "digits",
    scale: opt.ScaleOption = None,
    backbone: opt.Backbone = None,
    rounds: opt.Rounds = None,
    clients_per_round: opt.ClientsPerRound = None,
    seed: Annotated[int, typer.Option(help="Of data, weights, cohorts and batches.")] = 0,
    grant: opt.Grant = None,
    transport: Annotated[
        str, typer.Option(help=f"{', '.join(TRANSPORTS)}, or auto: a pool if it has 2 workers.")
    ] = "auto",
    workers: Annotated[
        str, typer.Option(help="Processes that visit clients; auto is one per core.")
    ] = "auto",
    on_loss: opt.OnLoss = "fail",
    timeout: opt.Timeout = None,
    min_sites: opt.MinSites = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")] = "cpu",
    layout: Annotated[
        str,
        typer.Option(help="Memory of conv nets: channels-last, contiguous, or auto: tried once."),
    ] = "channels-last",
    compiled: Annotated[
        bool, typer.Option("--compile", help="torch.compile the net, once per process.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train one method in one scenario, score it, and keep everything in a run directory."""
    count = opt.workers_of(workers)
    policy = Policy(on_loss, timeout, min_sites)  # type: ignore[arg-type]  # it checks the word
    if (count or 1) > 1 and transport not in ("auto", "pool", "flower"):
        raise ConfigError(f"transport {transport!r} has one worker; leave out --workers {workers}")
    if method is None and resume and out is not None:
        config = read_config(out)
        whole = config.build()
    else:
        own, changes = split_settings(
            settings, backbone=backbone, rounds=rounds, clients_per_round=clients_per_round
        )
        config, whole = configure(
            _required(method),
            placed(scenario, scale, grant, changes),
            seed=seed,
            settings=own,
            without=tuple(without or ()),
        )
    path = out or Path("runs") / config.name
    compute = Compute(device, layout, compiled)
    with Board(quiet=quiet) as board:
        listener: Listener = board.watch(config)
        options = Options(resume, transport, listener, count, policy, compute)
        result = execute(config, whole, path, options)
    opt.tell(result, path, as_json=as_json, quiet=quiet)


def _required(method: str | None) -> str:
    if method is None:
        raise ConfigError("no --method is given; `fedshift list methods` shows what there is")
    return method


@app.command()
def compare(
    method: Annotated[list[str], typer.Option(help="Methods, separated by commas or repeated.")],
    settings: opt.Settings = None,
    scenario: Annotated[list[str], typer.Option(help="Repeatable.")] = ["digits"],  # noqa: B006
    scale: opt.ScaleOption = None,
    backbone: opt.Backbone = None,
    rounds: opt.Rounds = None,
    clients_per_round: opt.ClientsPerRound = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="Or the seeds 0 to N-1.", min=1)] = 1,
    grant: opt.Grant = None,
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of run directories.")] = Path("runs"),
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train methods x scenarios x seeds, skip what is done, print the table, write the report."""
    own, changes = split_settings(
        settings, backbone=backbone, rounds=rounds, clients_per_round=clients_per_round
    )
    if own:
        key = next(iter(own))
        raise ConfigError(f"--set {key} is ambiguous here; write it as METHOD[{key}={own[key]}]")
    places = [
        placed(name, scale, grant, dict(changes)) for item in scenario for name in item.split(",")
    ]
    with Board(quiet=quiet) as board:
        found = compare_runs(
            split_methods(method),
            places,
            seeds=seed or list(range(seeds)),
            out=out,
            workers=opt.workers_of(workers),
            watch=board.watch,
        )
    _publish(found, out, as_json=as_json, quiet=quiet)


def split_methods(items: list[str]) -> list[str]:
    """Expressions at commas, except those inside brackets."""
    out, depth, word = [], 0, ""
    for char in ",".join(items):
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            out.append(word.strip())
            word = ""
        else:
            word += char
    return [w for w in [*out, word.strip()] if w]


def _publish(found: Comparison, out: Path, *, as_json: bool, quiet: bool) -> None:
    """Table on the screen, page on disk; a failed run is told and makes the exit code 1."""
    page = html.write(found, out / "report.html") if found.results else None
    if as_json:
        failed = [{"run": f.config.name, "reason": f.reason} for f in found.failures]
        typer.echo(json.dumps({"runs": [r.summary for r in found.results], "failed": failed}))
    elif quiet:
        typer.echo(str(page or out))
    else:
        if found.results:
            Console().print(screen.console(found))
        typer.echo(f"report: {page}")
    for failure in found.failures:
        typer.echo(f"failed: {failure.config.name}: {failure.reason}", err=True)
    if found.failures:
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of run directories.")] = Path("demo"),
    rounds: opt.Rounds = None,
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    quiet: opt.Quiet = False,
) -> None:
    """Compare a few methods on the embedded digits: nothing to download, minutes on two cores."""
    methods = ["local", "fedavg", "fedbn", "ditto", *(m for m in CORE if m in METHODS.entries())]
    with Board(quiet=quiet) as board:
        found = compare_runs(
            methods, out=out, workers=opt.workers_of(workers), watch=board.watch, rounds=rounds
        )
    _publish(found, out, as_json=False, quiet=quiet)


@app.command(name="list")
def list_(
    kind: Annotated[
        Literal["methods", "parts", "scenarios", "backbones", "datasets"],
        typer.Argument(help="What to list."),
    ] = "methods",
    as_json: opt.Json = False,
) -> None:
    """List methods, parts, scenarios, backbones or datasets: one line each."""
    rows = catalogue(kind)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_catalogue(rows)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A run directory, or a folder of them.")],
    as_json: opt.Json = False,
) -> None:
    """Show the numbers of a run, or the table of a folder of runs."""
    single = (path / "config.json").exists() or not path.is_dir()
    found: Any = load_result(path) if single else read_comparison(path)
    if as_json:
        typer.echo(json.dumps(found.summary if single else [r.summary for r in found.results]))
    else:
        Console().print(screen.detail(found) if single else screen.console(found))


@app.command()
def partition(
    scenario: Annotated[str, typer.Argument(help="A scenario, or a dataset.")],
    scale: opt.ScaleOption = None,
    settings: opt.Settings = None,
    seed: Annotated[int, typer.Option(help="Who holds what depends on it.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Picture to write: png, svg or pdf.")] = None,
) -> None:
    """Show who holds what in a scenario: clients x domains x classes."""
    place = placed(scenario, scale, None, split_settings(settings)[1])
    shown = holdings(place, seed)
    Console().print(render_table(shown))
    if plot is not None:
        typer.echo(f"written: {figures.save(draw_partition(shown), plot)}")


@app.command()
def report(
    path: Annotated[Path, typer.Argument(help="A folder of run directories.")],
    form: Annotated[
        Literal["html", "markdown", "latex", "csv"], typer.Option("--format", help="What to make.")
    ] = "html",
    out: Annotated[Path | None, typer.Option(help="File to write; html has a default.")] = None,
) -> None:
    """Make the page, or the table in Markdown, LaTeX or CSV, of all finished runs in a folder."""
    found = read_comparison(opt.folder(path))
    if form == "html":
        typer.echo(f"report: {html.write(found, out or path / 'report.html')}")
        return
    text = {"markdown": formats.markdown, "latex": formats.latex, "csv": formats.csv}[form](found)
    if out is None:
        typer.echo(text)
    else:
        formats.write(text, out)
        typer.echo(f"written: {out}")


@app.command()
def check(
    method: Annotated[str, typer.Argument(help="Method to test, such as your own.")],
) -> None:
    """Run the contract suite on a method: bytes, privacy, order, seeds, resume, traces."""
    from fedshift.testing import check_contract  # noqa: PLC0415  registers a toy dataset

    if not method.strip():
        raise UnknownNameError.of("method", method, METHODS.entries())
    verdicts = check_contract(method)
    for verdict in verdicts:
        mark = "broken" if verdict.failure else "skipped" if verdict.skipped else "kept"
        typer.echo(f"{mark:<7}  {verdict.promise}")
        if reason := verdict.failure or verdict.skipped:
            typer.echo(f"         {reason}")
    if any(v.failure for v in verdicts):
        raise typer.Exit(1)
