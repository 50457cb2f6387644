"""Which methods ``advise`` looks at for a question, with the reason for each: a table of data.

``guide.advise`` reads it and nothing else decides who takes part. An entry is a method as it is
typed, why it may be the answer, and the one setting by which it is tuned with the values that are
tried beside its default. Values stand a factor of three to ten apart: a short comparison cannot
tell finer ones from each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedshift.base.errors import UnknownNameError
from fedshift.core.scenario import Protocol

FEDAVG, LOCAL = "fedavg", "local"
PRIVACY = ("none", "local-dp", "secure-aggregation", "central-dp")


@dataclass(frozen=True)
class Contender:
    """A method of the shortlist: why it may be the answer, and what it is tuned by."""

    method: str
    reason: str
    setting: str = ""  # its main parameter; empty: it has none
    values: tuple[str, ...] = ()  # what is tried beside the default

    @property
    def baseline(self) -> bool:
        """Whether it is what others must beat; baselines stay in a comparison to its end."""
        return self.method in (FEDAVG, LOCAL)


@dataclass(frozen=True)
class Shortlist:
    """What is asked, under which protocol it is scored, and which methods may be the answer.

    Where ``left_out`` is true, nobody may look at the domain that is asked about, so each training
    domain in turn takes its place.
    """

    name: str
    asks: str
    protocol: Protocol
    entries: tuple[Contender, ...]
    left_out: bool = False
    allow: tuple[str, ...] = ()  # what the question itself grants


def question_of(name: str) -> Shortlist:
    """The question of that name, or an error that lists all."""
    if name not in QUESTIONS:
        raise UnknownNameError.of("question", name, QUESTIONS)
    return QUESTIONS[name]


REFERENCE = Contender(FEDAVG, "the reference: no method is worth its settings if it is not better")
ALONE = Contender(
    LOCAL, "no federation at all: what a site gains by taking part must show against it"
)

SINGLE = (
    REFERENCE,
    Contender("fedprox", "holds sites near the common model while they train", "mu", ("0.1", "1")),
    Contender("scaffold", "corrects each site's drift by control variates; it has no setting"),
    Contender("feddyn", "moves the sites' optima onto the common one", "alpha", ("0.01", "1")),
    Contender(
        "f2dc", "separates what is of the look from what is of the class", "tau", ("0.02", "0.2")
    ),
    Contender("fpl", "pulls features of all looks to common prototypes", "tau", ("0.05", "0.2")),
    Contender("feddebias", "balances classifiers where sites lack classes", "lam", ("0.01", "1")),
    Contender("fedlc", "keeps a site from unlearning its rare classes", "tau", ("0.3", "3")),
    Contender("mixstyle", "mixes the styles of feature maps, at no cost", "alpha", ("0.03", "0.3")),
    Contender("copa", "trains one body for the heads of all sites", "lam", ("0.1", "10")),
)
PER_SITE = (
    REFERENCE,
    ALONE,
    Contender("fedbn", "each site keeps its normalisation, which is where looks sit; no setting"),
    Contender("fdse", "erases each site's look in layers of its own", "tau", ("0.1", "2")),
    Contender("fed-co2", "a shared and a private model teach each other", "lam", ("0.1", "10")),
    Contender("gperxan", "shared instance norm beside private batch norm", "lam", ("0.1", "2")),
    Contender(
        "ditto", "a model of its own for each site, near the common one", "lam", ("0.01", "1")
    ),
    Contender(
        "apfl", "each site mixes its own model with the common one", "alpha", ("0.25", "0.75")
    ),
    Contender("per-fedavg", "a start from which one step fits a site", "alpha", ("0.003", "0.03")),
    Contender("fedrep", "a common body, and a head of each site's own", "head_epochs", ("1", "2")),
)
UNSEEN = (
    REFERENCE,
    Contender("adapt-bn", "takes the new site's own normalisation statistics; no setting"),
    Contender(
        "tent", "makes predictions at the new site confident", "adapt_lr", ("0.0001", "0.01")
    ),
    Contender("t3a", "refits the head to confident features of the new site", "keep", ("5", "100")),
    Contender("mixstyle", "mixes the styles of feature maps, at no cost", "alpha", ("0.03", "0.3")),
    Contender("fourier", "mixes looks as amplitude spectra of images", "eta", ("0.3", "0.6")),
    Contender("feddg-ga", "evens out what each site loses by averaging", "step", ("0.05", "0.5")),
    Contender("csac", "fuses layers by how far sites diverge in them", "lam", ("0.2", "2")),
    Contender("fdse", "erases looks, and estimates a new site's", "lam", ("0.05", "5")),
    Contender("copa", "lets the heads of all sites vote on the new one", "lam", ("0.1", "10")),
)
UNLABELLED = (
    REFERENCE,
    Contender("adapt-bn", "takes the target's own normalisation statistics; no setting"),
    Contender("tent", "makes predictions on the target confident", "adapt_lr", ("0.0001", "0.01")),
    Contender("shot", "fits features of the target to a frozen head", "beta", ("0.1", "1")),
    Contender("voting", "tunes the model on the sites' majority labels", "gamma", ("1", "20")),
    Contender("f-dan", "matches features to the target's by their means", "gamma", ("1", "20")),
    Contender("f-dann", "hides from a classifier what is of the target", "gamma", ("1", "20")),
    Contender("fada", "weighs sites by what they do for the target", "lam", ("0.03", "0.3")),
    Contender(
        "kd3a", "distils what the sites agree on for the target", "gate_begin", ("0.6", "0.9")
    ),
    Contender("fedka", "matches features, and lets sites vote on labels", "gamma", ("1", "20")),
)
# Join where bytes are limited: FedAvg with less to send.
SMALLER = (
    Contender("fedavg + quantise", "sends steps in few bits", "bits", ("4",)),
    Contender("fedavg + top-k", "sends the largest steps only", "top-k.fraction", ("0.03", "0.3")),
)
QUESTIONS = {
    q.name: q
    for q in (
        Shortlist("single", "Which one model is best for all sites?", "global", SINGLE),
        Shortlist("per-site", "Which model is best at each site?", "personal", PER_SITE),
        Shortlist(
            "unseen",
            "Which model is best at a site that took no part?",
            "unseen-adapted",
            UNSEEN,
            left_out=True,
        ),
        Shortlist(
            "unlabelled",
            "Which model is best at a site whose data have no labels?",
            "unseen-adapted",
            UNLABELLED,
            left_out=True,
            allow=("server_unlabelled",),
        ),
    )
}
