"""The scenario: everything that all methods of a comparison have in common.

Data, clients, local budget, optimiser, participation, model selection and protocols are chosen
here, by the user or a registered scenario, and read by the engine and by parts. A method must never
override them: published numbers differ by ten points for reasons that belong to no method.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedshift.base import seeds
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.registry import Registry
from fedshift.core.analysis import ANALYSES, analysis
from fedshift.core.objective import Objective, objective
from fedshift.core.optimiser import Optimisation, Precision
from fedshift.core.resource import RESOURCES
from fedshift.data.augment import PRESETS
from fedshift.data.dealing.partitions import Partition, PerDomain
from fedshift.data.dealing.splits import Given, Split, describe_rule
from fedshift.data.samples import Pixels

Protocol = Literal["personal", "personal-trained", "global", "unseen", "unseen-adapted"]
Budget = Literal["rounds", "steps", "bytes"]
UNSEEN: tuple[Protocol, ...] = ("unseen", "unseen-adapted")
Scale = Literal["paper", "bench", "laptop"]
Attack = Literal[
    "sign-flip", "scaled-noise", "label-flip", "backdoor", "a-little-is-enough", "inner-product"
]
Positive = Annotated[int, Field(ge=1)]
RENAMED = {"newcomer": "private_at_new_site", "grants": "allow"}  # names before 0.2, still accepted


def _unset(value: object) -> bool:
    """Options that are left out of a record unless they are set: runs without them keep names."""
    return not value


class Frozen(BaseModel):
    """Base of our pydantic models: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Scenario(Frozen):
    """Everything about a run but the method and the seed.

    The defaults are the same for all methods; :meth:`confounders` lists the choices that change
    results although they belong to no method. ``allow`` names the extra data or knowledge that
    parts may use (see ``core.resource``). ``scored`` says which model is evaluated: ``aggregated``
    is the one after the round, ``trained`` each client's own before aggregation.
    ``private_at_new_site`` says which private entries a site gets that has never trained: none at
    all, so that there is no score (``refuse``), the initial ones, the mean of the clients' (which
    upload them for it), or the net without the necks they belong to (``none``). ``labelled`` hides
    the labels of all but this share of each client's training samples; the others become its
    unlabelled ones. ``class_balance`` lets the classes of a client count the same in its training:
    by ``weights`` n / (K n_c) in the loss, as scikit-learn has them, or by ``sampling``, which
    draws the rows of an epoch with replacement, every class equally often on average.
    """

    name: str
    summary: str = ""
    scale: Scale | None = None
    changed: str = ""  # how this scale differs from the paper's
    data: str
    data_options: dict[str, Any] = Field(default_factory=dict)
    domains: tuple[str, ...]
    unseen: str | None = None  # domain that no client has, for the unseen protocols
    public: str | None = None  # data set for every client and the server, if public_set is allowed
    objective: Literal["classification", "multi-label", "regression"] = "classification"
    target: tuple[float, Annotated[float, Field(gt=0)]] = (0.0, 1.0)  # regression: shift, scale
    class_balance: Literal["none", "weights", "sampling"] = "none"  # at each client, in training
    labelled: Annotated[float, Field(gt=0, lt=1)] | None = None  # training samples with labels
    split: Split = Given()
    unseen_split: Split | None = None  # None: as for the other domains
    partition: Partition = PerDomain()
    pixels: Pixels = "centred"
    augment: str = "none"
    backbone: str = "cnn"
    backbone_options: dict[str, Any] = Field(default_factory=dict)
    rounds: Positive = 30
    equal: Budget = "rounds"  # what compared methods have the same of; experiment.budget
    epochs: Positive | None = None  # local epochs per visit; None and no steps: 1
    steps: Positive | None = None  # or local steps per visit
    batch_size: Positive = 32
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Field(gt=0)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] | None = None  # gradient norm
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # factor per round
    precision: Precision = "float32"  # of forward and backward passes; weights are float32
    optimiser_state: Literal["reset", "keep"] = "reset"
    bn: Literal["average", "local", "recompute"] = "average"
    weights: Literal["examples", "uniform"] = "examples"
    # Largest weight of one client in the mean, whatever its size; see core.aggregate.bounded.
    max_weight: Annotated[float, Field(gt=0, le=1)] | None = Field(None, exclude_if=_unset)
    clients_per_round: Positive | None = None  # None: all of them
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None  # of the clients, per round
    protocols: tuple[Protocol, ...] = ("personal", "global")
    selection: Literal["validation", "last", "last5", "oracle"] = "validation"
    scored: Literal["aggregated", "trained"] = "aggregated"
    confusion: bool = True  # report counts by true and predicted class of the test samples
    evaluate_every: Positive = 1
    analyses: tuple[str, ...] = ()  # measured at each evaluation, see core.analysis
    private_at_new_site: Literal["refuse", "initial", "mean", "none"] = "refuse"
    allow: tuple[str, ...] = ("client_val", "domain_ids")
    attack: Attack | None = Field(None, exclude_if=_unset)  # what hostile sites do; engine.attacks
    attackers: Annotated[float, Field(ge=0, lt=1, exclude_if=_unset)] = 0.0  # fraction of the sites
    attack_strength: Annotated[float, Field(gt=0)] | None = Field(None, exclude_if=_unset)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        """Accept the option names of earlier versions, found in old run directories and scripts."""
        if isinstance(values, dict):
            return {RENAMED.get(key, key): value for key, value in values.items()}
        return values

    @field_validator("domains", "protocols", "analyses", "allow", "target", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Accept text as typed on a command line: several values joined by commas, or none."""
        if isinstance(value, str):
            return tuple(filter(None, (word.strip() for word in value.split(","))))
        return () if value is None else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.epochs and self.steps:
            raise ValueError("epochs and steps are both set; local work is one or the other")
        if self.clients_per_round and self.fraction:
            raise ValueError("clients_per_round and fraction are both set; give one")
        if self.momentum and self.optimiser != "sgd":
            raise ValueError(f"momentum is for sgd; the optimiser is {self.optimiser}")
        if len(set(self.domains)) != len(self.domains) or not self.domains:
            raise ValueError("domains must name at least one domain to train on, each once")
        if self.unseen in self.domains:
            raise ValueError(f"domain {self.unseen!r} is both trained on and unseen")
        if self.unseen is None and any(p.startswith("unseen") for p in self.protocols):
            raise ValueError("an unseen protocol needs the name of the unseen domain")
        return self

    @model_validator(mode="after")
    def _measured(self) -> Self:
        for name in self.analyses:
            if problem := analysis(name).problem(self):
                raise ValueError(f"{name} {problem}")
        if self.target != (0.0, 1.0) and self.objective != "regression":
            raise ValueError(f"target is for regression; the objective is {self.objective}")
        if self.class_balance != "none" and self.objective != "classification":
            raise ValueError(f"class_balance needs classes; the objective is {self.objective}")
        return self

    @model_validator(mode="after")
    def _attack_and_attackers(self) -> Self:
        if bool(self.attack) != bool(self.attackers):
            raise ValueError(
                f"attack is {self.attack} and attackers is {self.attackers:g}; an attack needs the "
                "fraction of sites that make it, and attackers an attack"
            )
        return self

    @field_validator("augment")
    @classmethod
    def _preset(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"no such preset; known: {', '.join(PRESETS)}")
        return name

    @field_validator("allow")
    @classmethod
    def _known(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for name in allow:
            _registered(RESOURCES, name)
        return allow

    @field_validator("analyses")
    @classmethod
    def _measurable(cls, analyses: tuple[str, ...]) -> tuple[str, ...]:
        for name in analyses:
            _registered(ANALYSES, name)
        return analyses

    def change(self, **values: Any) -> Scenario:
        """A validated copy with other values; raises a one-line error if they do not fit.

        Setting one of two exclusive options (``steps`` and ``epochs``, ``fraction`` and
        ``clients_per_round``) clears the other. Naming the ``unseen`` domain takes it out of the
        training domains and adds the unseen protocols, unless these are given too; a domain that
        was unseen before takes its place.
        """
        values = {RENAMED.get(key, key): value for key, value in values.items()}
        for key in values:
            if key not in type(self).model_fields:
                raise UnknownNameError.of("scenario option", key, type(self).model_fields)
        if values.get("unseen"):
            values = self._leaving_out(values["unseen"]) | values
        for one, other in (("steps", "epochs"), ("fraction", "clients_per_round")):
            if values.get(one):
                values.setdefault(other, None)
            elif values.get(other):
                values.setdefault(one, None)
        try:
            return Scenario.model_validate(self.model_dump() | values)
        except ValidationError as error:
            raise ConfigError(one_line(error)) from None

    def _leaving_out(self, unseen: str) -> dict[str, Any]:
        """The options that follow from the name of the unseen domain."""
        added = [p for p in UNSEEN if not any(q in self.protocols for q in UNSEEN)]
        if unseen not in self.domains:
            return {"protocols": (*self.protocols, *added)}
        instead = () if self.unseen is None else (self.unseen,)
        at = self.domains.index(unseen)
        domains = (*self.domains[:at], *instead, *self.domains[at + 1 :])
        return {"domains": domains, "protocols": (*self.protocols, *added)}

    @property
    def personal_scores(self) -> dict[str, str]:
        """Protocols that a site scores with its own model: the head of each one's split names.

        The model after the round comes first: it is what a visit has loaded.
        """
        heads = {"personal": "", "personal-trained": "trained-"}
        return {p: head for p, head in heads.items() if p in self.protocols}

    @property
    def keeps_trained(self) -> bool:
        """Whether the model of a site after its training, before aggregation, is scored."""
        return self.scored == "trained" or "personal-trained" in self.protocols

    @property
    def task(self) -> Objective:
        """The objective: loss and measures of the kind of target."""
        return objective(self.objective, *self.target)

    @property
    def optimiser_kind(self) -> str:
        """Compared with ``Declares.optimisers``: sgd, momentum (SGD with it), adam or adamw."""
        return "momentum" if self.momentum else self.optimiser

    def optimisation(self, round_: int) -> Optimisation:
        """Optimiser settings of a round (1-based)."""
        lr = self.lr * self.lr_decay ** (round_ - 1)
        return Optimisation(
            self.optimiser, lr, self.momentum, self.weight_decay, self.clip, self.precision
        )

    def cohort_size(self, clients: int) -> int:
        """Number of clients that take part in a round, of ``clients`` in all."""
        wanted = self.clients_per_round or (
            max(1, round(self.fraction * clients)) if self.fraction else clients
        )
        if clients == 1:
            return 1
        if wanted > clients:
            raise ConfigError(
                f"clients_per_round is {wanted}, but scenario {self.name!r} has {clients} clients; "
                f"sample at most {clients}"
            )
        return wanted

    def cohort(self, seed: int | bytes, round_: int, clients: list[str]) -> list[str]:
        """The clients that take part in a round, sampled without replacement.

        The sample depends on the seed, the round and the set of clients alone, so a resumed run
        draws the same cohorts. ``clients`` are those that have enrolled; if there are fewer than
        the cohort's size, all take part. A secret (bytes) is the key of a pseudo-random function:
        the clients with the smallest values take part, and nobody without it can tell which.
        """
        size = self.cohort_size(max(len(clients), self.clients_per_round or 0))
        size = min(size, len(clients))
        ordered = sorted(clients)
        if size == len(clients):
            return ordered
        if isinstance(seed, bytes):
            secret = {c: blake2b(f"{round_} {c}".encode(), key=seed).digest() for c in ordered}
            return sorted(sorted(ordered, key=secret.__getitem__)[:size])
        chosen = seeds.numpy(seed, "cohort", round_).choice(len(clients), size, replace=False)
        return [ordered[i] for i in sorted(chosen)]

    def confounders(self, *, images: bool = True) -> dict[str, str]:
        """The choices that are printed with every result, by name.

        ``images`` says whether inputs are images: only then do pixels and augmentation matter.
        """
        count, unit = (self.steps, "step") if self.steps else (self.epochs or 1, "epoch")
        work = f"{count} {unit}{'' if count == 1 else 's'}"
        rate = f"{self.optimiser_kind} lr {self.lr:g}"
        rate += f" momentum {self.momentum:g}" if self.momentum else ""
        rate += f" decay {self.lr_decay:g}/round" if self.lr_decay != 1 else ""
        part = self.clients_per_round or (f"{self.fraction:g} of" if self.fraction else "all")
        return (
            {
                "local work": f"{work} of {self.batch_size}",
                "split": describe_rule(self.split, classes=self.objective == "classification"),
            }
            | ({"images": f"{self.pixels} pixels, augmentation {self.augment}"} if images else {})
            | {
                "optimiser": f"{rate}, weight decay {self.weight_decay:g}",
                "optimiser state": self.optimiser_state,
                "clip": f"{self.clip:g}" if self.clip else "none",
                "precision": self.precision,
                "BN statistics": self.bn,
                "client weights": f"{self.weights} (unless the method has its own)",
                "participation": f"{part} clients per round",
                "selection": self.selection,
                "scored": f"{self.scored} model, every {self.evaluate_every} round(s)",
                "private entries at a new site": self.private_at_new_site,
            }
            | self._unusual()
            | ({"smaller than the paper's": self.changed} if self.changed else {})
        )

    def _unusual(self) -> dict[str, str]:
        """Choices that are printed only where they differ from the usual ones."""
        out: dict[str, str] = {}
        if self.objective != "classification":
            out["objective"] = self.objective
        if encoder := self.data_options.get("encoder"):
            out["inputs"] = f"features of {encoder}, stored once"
        if self.class_balance != "none":
            out["class balance"] = f"{self.class_balance} at each client"
        if self.labelled is not None:
            out["labels"] = f"of {self.labelled:.0%} of the training samples"
        if self.max_weight is not None:
            out["largest weight of a client"] = f"{self.max_weight:g}"
        if self.attack:
            hostile = f"{self.attack} by {self.attackers:g} of the sites"
            hostile += f", strength {self.attack_strength:g}" if self.attack_strength else ""
            out["attack"] = hostile
        return out


def _registered(registry: Registry[Any], name: str) -> None:
    """Raise a ``ValueError``, which pydantic reports with its field, if nothing has that name."""
    try:
        registry.get(name)
    except UnknownNameError as error:
        raise ValueError(str(error)) from None


def scaled(paper: Scenario, scale: Scale, **values: Any) -> Scenario:
    """The paper's scenario, or a smaller copy with other ``values`` that records what changed."""
    if scale == "paper":
        return paper.change(scale=scale)
    small = paper.change(scale=scale, **values)
    before, after = paper.model_dump(), small.model_dump()
    changes = [f"{key} {before[key]} -> {after[key]}" for key in values]
    return small.change(changed="; ".join(changes))


def one_line(error: ValidationError) -> str:
    """A pydantic error as one line: one clause per problem, joined by semicolons."""
    rows = []
    for item in error.errors(include_url=False):
        where = ".".join(map(str, item["loc"]))
        text = item["msg"].removeprefix("Value error, ")
        rows.append(f"{where} is {item['input']!r}: {text}" if where else text)
    return "; ".join(rows)
