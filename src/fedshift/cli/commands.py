"""The commands. Each is a thin shell around the Python API.

What a command needs is imported when it runs: ``fedshift --help`` must not wait for torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.version import __version__
from fedshift.cli import options as opt
from fedshift.cli.adapt import adapt
from fedshift.cli.advise import advise
from fedshift.cli.analyse import analyse
from fedshift.cli.card import card
from fedshift.cli.claims import app as claims_app
from fedshift.cli.data import app as data_app
from fedshift.cli.deploy import server as server_app
from fedshift.cli.deploy import site as site_app
from fedshift.cli.doctor import doctor
from fedshift.cli.export import export
from fedshift.cli.export_log import export_log
from fedshift.cli.finetune import finetune
from fedshift.cli.init import init
from fedshift.cli.ledger import ledger
from fedshift.cli.predict import predict
from fedshift.cli.published import announce, logged, print_commands, publish, split_methods
from fedshift.cli.report import report
from fedshift.cli.reproduce import reproduce
from fedshift.cli.serve import serve
from fedshift.cli.show import show
from fedshift.cli.sweep import sweep
from fedshift.cli.watch import watch

app = typer.Typer(
    name="fedshift",
    help="Federated learning under domain shift.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


# Headings of `fedshift --help`, in this order.
TRAIN, KNOW, LOOK = "Train", "What there is", "Look at runs"
BEGIN = "Begin with your data"
PAPERS, USE, MACHINES = "Papers", "Use a model", "Real machines"


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Federated learning under domain shift."""
    if version:
        typer.echo(f"fedshift {__version__}")


@app.command(rich_help_panel=TRAIN)
def run(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.toml]", help="A run file, or a run directory; options change its values."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help='Method, such as fedbn, "fedprox[mu=0.1]" or "fedavg + mixup".',
            autocompletion=opt.names("methods"),
        ),
    ] = None,
    settings: opt.Settings = None,
    without: opt.Without = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="See `fedshift list scenarios`; default digits.",
            autocompletion=opt.names("scenarios"),
        ),
    ] = None,
    scale: opt.Scale = None,
    backbone: opt.Backbone = None,
    rounds: opt.Rounds = None,
    clients_per_round: opt.ClientsPerRound = None,
    max_weight: opt.MaxWeight = None,
    seed: Annotated[
        int | None, typer.Option(help="Of data, weights, cohorts and batches; default 0.")
    ] = None,
    allow: opt.Allow = None,
    grant: opt.Grant = None,
    transport: Annotated[
        str,
        typer.Option(help="inprocess, pool, wire, flower, or auto: a pool if it has 2 workers."),
    ] = "auto",
    workers: Annotated[
        str, typer.Option(help="Processes that visit clients; auto is one per core.")
    ] = "auto",
    on_loss: opt.OnLoss = "fail",
    timeout: opt.Timeout = None,
    min_sites: opt.MinSites = 1,
    device: Annotated[
        str | None, typer.Option(help="cpu (default), cuda, cuda:1, mps, or auto.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="Memory of conv nets: channels-last (default), contiguous, or auto: tried once."
        ),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="torch.compile the net, once per process.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    requeue: Annotated[
        bool,
        typer.Option(
            "--requeue", help="Begin the run, or continue it if it was begun: for schedulers."
        ),
    ] = False,
    log: opt.Log = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train one method in one scenario, score it, and keep everything in a run directory."""
    count = opt.visitors_of(workers, transport)
    from fedshift.base.process import tune_process
    from fedshift.cli.runs import begun, configured, read_file, require_run
    from fedshift.core.server import Policy
    from fedshift.engine.compute import Compute
    from fedshift.experiment.estimate import estimate, worth_a_warm_up
    from fedshift.experiment.progress import ProgressBoard
    from fedshift.experiment.run import execute
    from fedshift.experiment.session import Options

    policy = Policy(on_loss, timeout, min_sites)  # type: ignore[arg-type]  # it checks the word
    given = read_file(file)
    if method is None and given is None and resume and out is not None:
        config, whole = begun(out)
    else:
        config, whole = configured(
            given,
            method=method,
            scenario=scenario,
            scale=scale,
            allow=[*(allow or ()), *(grant or ())],
            seed=seed,
            settings=settings,
            without=without or (),
            backbone=backbone,
            rounds=rounds,
            clients_per_round=clients_per_round,
            max_weight=max_weight,
        )
    compute = (given.compute if given else Compute()).changed(
        device=device, layout=layout, compile=compiled or None
    )
    path = out or Path("runs") / config.name
    tune_process()
    if resume:
        require_run(path)
    if dry_run:
        announce([(estimate(config, whole), 1)], opt.processes(count), as_json=as_json)
        return
    if not quiet and not path.exists() and worth_a_warm_up(config):
        announce([(estimate(config, whole), 1)], opt.processes(count), dry=False)
    with ProgressBoard(quiet=quiet) as board:
        listener = logged(board.watch, log, path.parent)(config)
        options = Options(resume or requeue, transport, listener, count, policy, compute)
        result = execute(config, whole, path, options)
    opt.tell(result, path, as_json=as_json, quiet=quiet)


@app.command(rich_help_panel=TRAIN)
def compare(
    method: Annotated[
        list[str],
        typer.Option(
            help="Methods, separated by commas or repeated.", autocompletion=opt.names("methods")
        ),
    ],
    settings: opt.Settings = None,
    scenario: Annotated[list[str], typer.Option(help="Repeatable.")] = ["digits"],  # noqa: B006
    scale: opt.Scale = None,
    backbone: opt.Backbone = None,
    rounds: opt.Rounds = None,
    clients_per_round: opt.ClientsPerRound = None,
    max_weight: opt.MaxWeight = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="Or the seeds 0 to N-1.", min=1)] = 1,
    allow: opt.Allow = None,
    grant: opt.Grant = None,
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of run directories.")] = Path("runs"),
    references: Annotated[
        bool,
        typer.Option(
            "--references",
            help="Add rows without federated learning: majority class, local, pooled, and for "
            "tables logistic regression and gradient boosting.",
        ),
    ] = False,
    against: opt.Against = None,
    equal: Annotated[
        str | None,
        typer.Option(
            help="What the methods have the same of: rounds, local steps or bytes. The one that "
            "takes most keeps the scenario's rounds; the others get more of them.",
            show_default="rounds",
        ),
    ] = None,
    tune: opt.Tune = None,
    executor: opt.Executor = "local",
    executor_set: opt.ExecutorSet = None,
    print_jobs: opt.PrintJobs = False,
    log: opt.Log = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train methods x scenarios x seeds, skip what is done, print the table, write the report."""
    from fedshift.base.process import tune_process
    from fedshift.experiment.compare import compare as compare_runs
    from fedshift.experiment.compare import estimates, plan
    from fedshift.experiment.progress import ProgressBoard
    from fedshift.experiment.scenario import require_clear, scenario_from, split_settings

    own, changes = split_settings(
        settings,
        backbone=backbone,
        rounds=rounds,
        clients_per_round=clients_per_round,
        max_weight=max_weight,
        equal=equal,
    )
    methods, chosen = split_methods(method), seed or list(range(seeds))
    if own:
        require_clear(methods[0], own)
        key = next(iter(own))
        raise ConfigError(f"--set {key} is ambiguous here; write it as METHOD[{key}={own[key]}]")
    allowed = [*(allow or ()), *(grant or ())]
    scenarios = [
        scenario_from(name, scale, allowed, dict(changes))
        for item in scenario
        for name in item.split(",")
    ]
    tune_process()
    if tune is not None and (print_jobs or dry_run):
        raise ConfigError(
            "--tune chooses settings as it goes; leave out --print-jobs and --dry-run"
        )
    if print_jobs:
        print_commands(plan(methods, scenarios, chosen, out))
        return
    if dry_run:
        guess = estimates(methods, scenarios, seeds=chosen, out=out)
        announce(guess, opt.processes(opt.workers_of(workers)), as_json=as_json)
        return
    guess = (
        [] if quiet or tune else estimates(methods, scenarios, seeds=chosen, out=out, cheaply=True)
    )
    if guess:
        announce(guess, opt.processes(opt.workers_of(workers)), dry=False)
    with ProgressBoard(quiet=quiet) as board:
        found = compare_runs(
            methods,
            scenarios,
            seeds=chosen,
            out=out,
            workers=opt.workers_of(workers),
            watch=logged(board.watch, log, out),
            references=references,
            against=against,
            executor=executor,
            executor_options=opt.executor_options(executor_set),
            tune=tune,
        )
    publish(found, out, as_json=as_json, quiet=quiet)


@app.command(rich_help_panel=TRAIN)
def demo(
    out: Annotated[Path, typer.Option(help="Folder of run directories.")] = Path("demo"),
    rounds: opt.Rounds = None,
    workers: Annotated[str, typer.Option(help="Runs at a time; auto is one per core.")] = "auto",
    quiet: opt.Quiet = False,
) -> None:
    """Each core method under its paper's question, on embedded digits: minutes on two cores."""
    from fedshift.base.process import tune_process
    from fedshift.experiment.demo import demonstrate
    from fedshift.experiment.progress import ProgressBoard

    tune_process()
    count = opt.processes(opt.workers_of(workers))
    with ProgressBoard(quiet=quiet) as board:
        found = demonstrate(out, board.watch, count, rounds=rounds)
    publish(found, out, as_json=False, quiet=quiet)


@app.command(name="list", rich_help_panel=KNOW)
def list_(
    kind: Annotated[
        Literal["methods", "parts", "scenarios", "backbones", "datasets", "analyses"],
        typer.Argument(help="What to list."),
    ] = "methods",
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Methods: papers and settings, too.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """List methods by group, or parts, scenarios, backbones, datasets, analyses: one line each."""
    from fedshift.cli.catalogue import catalogue, print_catalogue, print_methods

    rows = catalogue(kind)
    if as_json:
        typer.echo(json.dumps(rows))
    elif kind == "methods":
        print_methods(rows, verbose=verbose)
    else:
        print_catalogue(rows)


@app.command(rich_help_panel=KNOW)
def partition(
    scenario: Annotated[str, typer.Argument(help="A scenario, or a dataset.")],
    scale: opt.Scale = None,
    settings: opt.Settings = None,
    seed: Annotated[int, typer.Option(help="Who holds what depends on it.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Picture to write: png, svg or pdf.")] = None,
) -> None:
    """Show who holds what in a scenario: clients x domains x classes."""
    from rich.console import Console

    from fedshift.engine.federation import holdings
    from fedshift.experiment.scenario import scenario_from, split_settings
    from fedshift.report import optional
    from fedshift.report.partition import render_table

    chosen = scenario_from(scenario, scale, None, split_settings(settings)[1])
    shown = holdings(chosen, seed)
    Console().print(render_table(shown))
    if plot is not None:
        figures = optional.figures()
        typer.echo(f"written: {figures.save(figures.partition(shown), plot)}")


@app.command(rich_help_panel=KNOW)
def check(
    method: Annotated[str, typer.Argument(help="Method to test, such as your own.")],
) -> None:
    """Run the contract suite on a method: bytes, privacy, order, seeds, resume, traces."""
    from fedshift.core.registry import METHODS
    from fedshift.testing import check_contract

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


app.command(rich_help_panel=BEGIN)(init)
app.command(rich_help_panel=BEGIN)(doctor)
app.command(rich_help_panel=TRAIN)(sweep)
app.command(rich_help_panel=TRAIN)(advise)
app.command(rich_help_panel=KNOW)(show)
app.add_typer(data_app, name="data", rich_help_panel=KNOW)
app.command(rich_help_panel=LOOK)(watch)
app.command(rich_help_panel=LOOK)(report)
app.command(rich_help_panel=LOOK)(analyse)
app.command(rich_help_panel=LOOK)(ledger)
app.command(rich_help_panel=LOOK)(export_log)
app.command(rich_help_panel=PAPERS)(reproduce)
app.add_typer(claims_app, name="claims", rich_help_panel=PAPERS)
app.command(rich_help_panel=USE)(adapt)
app.command(rich_help_panel=USE)(finetune)
app.command(rich_help_panel=USE)(predict)
app.command(rich_help_panel=USE)(export)
app.command(rich_help_panel=USE)(card)
app.command(rich_help_panel=USE)(serve)
app.add_typer(server_app, name="server", rich_help_panel=MACHINES)
app.add_typer(site_app, name="site", rich_help_panel=MACHINES)
