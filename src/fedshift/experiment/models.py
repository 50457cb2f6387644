"""The model of a finished run, ready to predict: one site's own, or the one for everybody.

Users call :func:`load_model`. It reads the run directory alone, no data, and gives the model as it
was scored: the entries of the selected round, the private and personal ones of a site included, and
the state that the method's parts predict with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedshift.base import seeds, tree
from fedshift.base.errors import RunError, UnknownNameError
from fedshift.base.files import read_json
from fedshift.base.tensor_files import read_tensors
from fedshift.base.tree import Tree
from fedshift.core.aggregate import weighted_mean
from fedshift.core.client import Client
from fedshift.core.config import RunConfig
from fedshift.core.method import Method
from fedshift.core.net import Net, Scope, by_scope, load
from fedshift.core.objective import MultiLabel, Regression
from fedshift.core.part import Scoring
from fedshift.core.scenario import Protocol
from fedshift.core.state import State
from fedshift.data.federation import Federation, Site, Splits
from fedshift.data.samples import Samples
from fedshift.engine.build import build_net
from fedshift.evaluate.protocols import leave_out_necks
from fedshift.experiment.alike import most_alike
from fedshift.experiment.raw import Predictions, RawInputs, energy_of
from fedshift.report import optional
from fedshift.report.results import RunResult
from fedshift.runs import best
from fedshift.runs.record import read_config, read_lines, read_summary
from fedshift.runs.summary import selected_rounds

BATCH = 512  # inputs at a time, as in scoring


@dataclass(frozen=True)
class Model:
    """A trained net with what is needed to predict as it did when it was scored.

    ``net`` holds all entries, in evaluation mode; ``site`` is None for the model of everybody.
    """

    net: Net
    config: RunConfig
    method: Method
    round: int  # whose model it is
    classes: tuple[str, ...]
    site: str | None
    sites: tuple[str, ...]  # all sites of the run
    client: Client | None = None
    inbox: Tree = field(default_factory=dict)  # what the parts' ``send_scoring`` returned
    inputs: RawInputs | None = None  # how raw data become inputs
    alike: Callable[[Tensor], list[str] | None] | None = None  # see ``experiment.alike``

    @property
    def scoring(self) -> Scoring:
        """What parts predict and adapt with, as it was when the model was scored."""
        names = ("scoring",) if self.site is None else (self.site, "scoring")
        draw = partial(seeds.generator, self.config.seed, self.round, *names)
        return Scoring(self.client, self.inbox, draw)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (B, K) for inputs as ``Samples.take`` gives them, (B, *shape) floats."""
        with torch.no_grad():
            return self.method.predict(self.net, self.scoring, x)

    def predict(
        self,
        raw: Any,
        site: str | None = None,
        *,
        reference: Any = None,
        ids: str | None = None,
    ) -> Predictions:
        """A prediction for each row or image, by name, with probabilities.

        Args:
            raw: of tables a csv, parquet or xlsx file, a DataFrame or rows as mappings; of images
                a folder, a file or a list of files; or inputs as ``Samples.take`` gives them. They
                are prepared as the training data were; labels are not needed and not looked at.
            site: whose data they are; by default the model's site. It matters where each site was
                prepared with statistics of its own, and for images of more than 8 bits.
            reference: rows of a site that the run does not know, to fit its statistics on.
            ids: the column of a table that names its rows.

        Returns:
            A list of class names, of tuples of labels (multi-label) or of numbers in the target's
            unit (regression), with ``probabilities`` (N, K), ``classes``, ``ids``, ``energy``, an
            out-of-distribution score, and ``most_like``, the sites whose data look most alike.
        """
        assert self.inputs is not None
        x = self.inputs.read(raw, site or self.site, reference)
        found = self._named(x, self.inputs.ids(raw, ids))
        found.most_like = self.alike(x) if self.alike is not None else None
        return found

    def _named(self, x: Tensor, names: Sequence[Any] | None) -> Predictions:
        """Predictions of inputs (N, *shape) by name."""
        out = torch.cat([self.logits(part) for part in x.split(BATCH)])  # (N, K)
        task = self.config.scenario.task
        if isinstance(task, Regression):
            number = out.double().squeeze(1) * task.scale + task.shift
            return Predictions(number.tolist(), self.classes, None, None, names)
        if isinstance(task, MultiLabel):
            share = out.double().sigmoid()
            found = [tuple(n for n, p in zip(self.classes, row, strict=True) if p > 0.5)
                     for row in share.tolist()]  # fmt: skip
            return Predictions(found, self.classes, share, energy_of(out, labels=True), names)
        likeliest = [self.classes[i] for i in out.argmax(1).tolist()]
        share = out.double().softmax(1)
        return Predictions(likeliest, self.classes, share, energy_of(out), names)

    def predict_frame(self, frame: Any, site: str | None = None, **options: Any) -> Any:
        """A DataFrame for a DataFrame: :meth:`predict` as columns, under the frame's own index."""
        found = self.predict(frame, site, **options)
        columns = {name: cells for name, cells in found.columns().items() if name != "id"}
        return optional.pandas().DataFrame(columns, index=frame.index)


def load_model(
    run: RunResult | Path | str,
    site: str | None = None,
    *,
    protocol: Protocol | None = None,
    method: Method | None = None,
) -> Model:
    """The model that a run reports: of one site, or of everybody.

    Args:
        run: a run directory, or a result that has one.
        site: the site whose own model is wanted; None takes the one model for all, if there is one.
        protocol: whose selected round is taken; by default ``personal`` for a site, else
            ``global``, or the first one that was scored.
        method: the method, if the run was given a Method object.

    Examples:
        >>> import fedshift, tempfile
        >>> from fedshift.testing import tiny_scenario
        >>> with tempfile.TemporaryDirectory() as out:
        ...     result = fedshift.run("fedbn", tiny_scenario(rounds=1), out=out, quiet=True)
        ...     model = fedshift.load_model(out, "dark-0")
        >>> model.round, model.sites
        (1, ('bright-0', 'bright-1', 'dark-0', 'dark-1'))
    """
    path = run.path if isinstance(run, RunResult) else Path(run)
    if path is None:
        raise RunError("this run is not on disk, and so is no model of it; give the run an out")
    held = Kept.open(path, site, protocol, method)
    return held.of_all() if site is None else held.of_site(site)


@dataclass(frozen=True)
class Kept:
    """The files of one selected round, and the net that they belong to."""

    config: RunConfig
    method: Method
    protocol: Protocol  # whose round it is
    net: Net
    folder: Path
    round: int
    classes: tuple[str, ...]
    sites: tuple[str, ...]
    inputs: RawInputs
    about: Mapping[str, Any]  # ``model.json``

    @classmethod
    def open(
        cls, path: Path, site: str | None, protocol: Protocol | None, method: Method | None
    ) -> Kept:
        """Find the selected round of a run and build its net, with initial entries."""
        config = read_config(path)
        whole = method or config.build()
        about = read_json(path / best.FOLDER / "model.json")
        wanted: Protocol = protocol or ("global" if site is None else "personal")
        round_ = about["round"] if "round" in about else _selected(path, config, wanted)
        folder = path / best.FOLDER / str(round_)
        if not folder.is_dir():
            raise RunError(
                f"{path} holds no model of round {round_}, which is the selected one; runs of "
                "earlier versions and unfinished ones that select the last round have none"
            )
        classes, shape = tuple(about["classes"]), tuple(about["shape"])
        net = build_net(config, whole, Federation({}, {}, None, classes, shape))
        sites = sites_of(path)
        inputs = RawInputs.open(path, shape, config.scenario.pixels)
        return cls(config, whole, wanted, net.eval(), folder, round_, classes, sites, inputs, about)

    @property
    def keys(self) -> dict[Scope, frozenset[str]]:
        """Names of the entries by scope."""
        local = self.config.scenario.bn == "local"
        return by_scope(self.method.scopes(self.net, bn_local=local))

    @property
    def one_for_all(self) -> bool:
        """Whether there is one model for everybody; it may skip necks that sites keep private."""
        private, rule = self.keys[Scope.PRIVATE], self.config.scenario.private_at_new_site
        return (
            best.ADAPTED in self.about
            or not private
            or rule in ("initial", "mean")
            or (rule == "none" and leave_out_necks(self.net, private))
        )

    def of_site(self, site: str) -> Model:
        """A site's own model."""
        if site not in self.sites:
            raise UnknownNameError.of("site of this run", site, self.sites)
        if best.ADAPTED in self.about:
            return self._adapted()
        initial = tree.clone(self.net.state_dict())
        shared, state = self._shared(), self._state(site)
        received = initial | shared | self._personal(site) | state.get("net", {})
        trained = self.config.scenario.scored == "trained" or self.protocol == "personal-trained"
        load(self.net, received | (state.get("trained", {}) if trained else {}))
        client = Client(
            Site(site, "", _nothing()),
            self.net,
            self.config.scenario,
            self.config.seed,
            self.round,
            received,
            initial,
            frozenset(shared),
            {},
            state,
            {},
        )
        return self._model(site, client)

    def of_all(self) -> Model:
        """The one model for all, as the scenario's ``private_at_new_site`` defines it."""
        if best.ADAPTED in self.about:
            return self._adapted()
        if not self.one_for_all:
            raise RunError(
                f"{self.config.label} keeps entries private, so there is no one model for all; "
                f"name a site: {', '.join(self.sites)}"
            )
        entries = dict(self._shared())
        if self.keys[Scope.PERSONAL]:
            entries |= self._mean([self._personal(site) for site in self.sites])
        private = self.keys[Scope.PRIVATE]
        if private and self.config.scenario.private_at_new_site == "mean":
            initial = tree.pick(self.net.state_dict(), private)
            entries |= self._mean(
                [tree.pick(initial | self._state(s).get("net", {}), private) for s in self.sites]
            )
        load(self.net, entries)
        return self._model(None, None)

    def _adapted(self) -> Model:
        """The model of a directory that ``adapting`` wrote, where all entries are in one file."""
        self.net.skipped = frozenset(self.about["skipped"])
        load(self.net, self._shared())
        return self._model(self.about[best.ADAPTED], None)

    def own_entries(self) -> dict[str, Tree]:
        """Each site's personal and private entries; none where they are not in this directory."""
        if not (self.folder / "clients").is_dir():
            return {}
        own = {s: self._personal(s) | self._state(s).get("net", {}) for s in self.sites}
        return {s: found for s, found in own.items() if self.keys[Scope.PRIVATE] <= found.keys()}

    def most_alike(self, x: Tensor) -> list[str] | None:
        """For each input the site whose data it looks most like, where the run can tell."""
        return most_alike(self.net, self.own_entries(), self.keys[Scope.PRIVATE], x)

    def _mean(self, trees: list[Tree]) -> Tree:
        return weighted_mean(
            trees, torch.full((len(trees),), 1.0 / len(trees), dtype=torch.float64)
        )

    def _shared(self) -> Tree:
        return read_tensors(self.folder / "shared.safetensors")[0]

    def _personal(self, site: str) -> Tree:
        """The personal entries of a site; the initial ones if it never trained."""
        file = self.folder / "personal" / f"{site}.safetensors"
        initial = tree.pick(self.net.state_dict(), self.keys[Scope.PERSONAL])
        return _read_state(file).get("net") or initial

    def _state(self, site: str) -> State:
        """A site's state; a deployed site has it at home, and then there is no such folder."""
        folder = self.folder / "clients"
        if self.keys[Scope.PRIVATE] and not folder.is_dir():
            raise RunError(
                f"the private entries of site {site!r} never left it; load its model there"
            )
        return _read_state(folder / f"{site}.safetensors")

    def _model(self, site: str | None, client: Client | None) -> Model:
        file = self.folder / "scoring.safetensors"
        inbox = read_tensors(file)[0] if file.exists() else {}
        return Model(
            self.net,
            self.config,
            self.method,
            self.round,
            self.classes,
            site,
            self.sites,
            client,
            inbox,
            self.inputs,
            self.most_alike,
        )


def sites_of(path: Path) -> tuple[str, ...]:
    """The sites of a run, each of which may have a model of its own.

    The directory of a deployed site (``deploy.models``) names that site alone, and so does that of
    a model that was adapted to one (``adapting``).
    """
    about = read_json(path / best.FOLDER / "model.json")
    if "sites" in about:
        return tuple(about["sites"])
    return tuple(sorted(read_json(path / "checkpoints" / "roster.json")))


def _selected(path: Path, config: RunConfig, protocol: str) -> int:
    """The round that a run selects under a protocol, or under its first one if it has no such."""
    rows = read_lines(path / "metrics.jsonl")
    if read_summary(path) is None:  # lines of a round that is not finished do not count
        file = path / "checkpoints" / "server.safetensors"
        last = read_tensors(file)[1]["round"] if file.exists() else 0
        rows = [row for row in rows if row["round"] <= last]
    chosen = selected_rounds(config, rows)
    if not chosen:
        raise RunError(f"{path} has no scored round yet; finish the run")
    return chosen.get(protocol, next(iter(chosen.values())))


def _read_state(file: Path) -> State:
    """A state as ``core.state`` stores it: entries by owner; empty if there is none."""
    state: State = defaultdict(dict)
    for key, value in read_tensors(file)[0].items() if file.exists() else ():
        owner, _, entry = key.partition("/")
        state[owner][entry] = value
    return state


def _nothing() -> Splits:
    """No samples: a loaded model has none of the site's data."""
    none = torch.empty(0, dtype=torch.long)
    empty = Samples(torch.empty(0, 1), none, none)
    return Splits(empty, empty, empty)
