"""One card per dataset: domains, classes, licence, where to get it, how its source is laid out.

The dataset library, the code that finds sources and ``fedshift data`` read these cards, so a
dataset of a known layout is one more line in the table. Nothing here opens a dataset's files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedshift.base import seeds
from fedshift.base.errors import ConfigError, UnknownNameError


@dataclass(frozen=True)
class Hub:
    """A dataset of the Hugging Face hub and its columns; ``name``: the one domain that it holds."""

    id: str
    name: str = ""
    config: str | None = None
    image: str = "image"
    label: str = "label"
    domain: str = "domain"


@dataclass(frozen=True)
class DatasetCard:
    """The dataset card: what users, and the code that prepares the dataset, must know about it."""

    name: str
    summary: str
    domains: tuple[str, ...]  # empty: all that the source has, one per site
    classes: int
    class_names: tuple[str, ...] = ()  # empty: take the source's names
    form: str = "images of any size"
    licence: str = "none stated; research use"
    where: str = ""
    hub: tuple[Hub, ...] = ()
    folders: tuple[str, ...] = ()  # other folders that may hold it; "." is FEDSHIFT_SOURCES itself
    aliases: Mapping[str, str] = field(default_factory=dict)  # a source's domain name to ours
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    part: bool = False  # it uses only some of the source's classes, on purpose
    size: int | None = None  # default side of the images in pixels
    base: str = ""  # the source's domain that is rotated to make ours
    angles: tuple[int, ...] = ()
    origin: str = ""  # path that your own data were added from
    columns: tuple[str, str] = ("label", "domain")  # of a csv or parquet file
    images: str = ""  # folder that the paths in a csv start from; empty: the csv's own
    table: Mapping[str, Any] = field(default_factory=dict)  # what else you said about your table

    @property
    def needed(self) -> tuple[str, ...]:
        """Domains that the source must have."""
        return (self.base,) if self.base else self.domains

    def domain_of(self, name: str) -> str:
        """Our name for a source's domain: ``Real World`` and ``RealWorld`` are ``real_world``."""
        return _known(name, self.needed, self.aliases)

    def class_of(self, name: str) -> str:
        """Our name for a source's class."""
        return _known(name, self.class_names, self.class_aliases)

    def class_at(self, name: str) -> str:
        """Our name for a source's class, which may also be its index in ``class_names``."""
        known = self.class_of(name)
        if known not in self.class_names and name.isdecimal() and int(name) < len(self.class_names):
            return self.class_names[int(name)]
        return known


@dataclass(frozen=True)
class Variant:
    """The options by which a dataset is prepared; each variant has its own folder in the store."""

    size: int | None = None  # side in pixels; None: as stored, if all images agree
    form: str = ""  # which one, of a dataset that is published in several
    encoder: str = ""  # Python file with encode(texts), for the form text
    only: tuple[str, ...] = ()  # classes to keep
    angles: tuple[int, ...] = ()  # degrees, one domain each
    per_class: int | None = None  # images kept of each class; None: all
    disjoint: bool = False  # whether each training image appears at one angle only
    sites: int | None = None  # keep this many domains, the largest

    def __post_init__(self) -> None:
        for name in ("size", "per_class", "sites"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")

    @property
    def key(self) -> str:
        """Name of the variant's folder: the size or form, and a digest of the other options set."""
        head = self.form or (str(self.size) if self.size else "stored")
        rest = {f.name: getattr(self, f.name) for f in fields(self)[2:]}
        if self.encoder:
            rest["encoder"] = Path(self.encoder).read_text()
        told = {k: v for k, v in rest.items() if v}
        return f"{head}-{seeds.derive(told) % 16**8:08x}" if told else head


def _known(name: str, ours: tuple[str, ...], aliases: Mapping[str, str]) -> str:
    if name in ours:
        return name
    bare = {plain(one): one for one in ours} | {plain(k): v for k, v in aliases.items()}
    return bare.get(plain(name), name)


def plain(name: str) -> str:
    """Only the letters and digits of a name, in lower case.

    >>> plain("Real World") == plain("real_world")
    True
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_card(name: str) -> DatasetCard:
    """The card of a dataset in our table."""
    if name not in CATALOGUE:
        raise UnknownNameError.of("dataset", name, CATALOGUE)
    return CATALOGUE[name]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _turned(last: int) -> tuple[str, ...]:
    return tuple(f"deg{angle}" for angle in range(0, last + 1, 15))


DIGITS = tuple("0123456789")
OFFICE10 = _words("backpack bike calculator headphones keyboard laptop monitor mouse mug projector")
OFFICE31 = _words(
    "back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer "
    "file_cabinet headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug "
    "paper_notebook pen phone printer projector punchers ring_binder ruler scissors speaker "
    "stapler tape_dispenser trash_can"
)
OFFICE_HOME = _words(
    "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair "
    "Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet "
    "Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop "
    "Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer "
    "Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon "
    "TV Table Telephone ToothBrush Toys Trash_Can Webcam"
)
PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
CIFAR10 = _words("airplane automobile bird cat deer dog frog horse ship truck")
# The paper's text names none of them; these are the ten of its released code (flgo's domainnet).
DOMAINNET10 = _words(
    "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra"
)
SKETCHY = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
OFFICE_ALIASES = {"back_pack": "backpack", "laptop_computer": "laptop"} | {
    "headphone": "headphones", "video_projector": "projector", "computer_monitor": "monitor",
    "touring_bike": "bike", "coffee_mug": "mug", "computer_keyboard": "keyboard",
    "computer_mouse": "mouse", "laptop_101": "laptop", "head_phones": "headphones",
}  # fmt: skip
DIGIT_HUB = (
    Hub("ylecun/mnist", "mnist"),
    Hub("flwrlabs/usps", "usps"),
    Hub("ufldl-stanford/svhn", "svhn", config="cropped_digits"),
    Hub("Mike0307/MNIST-M", "mnist_m"),
)
SYN = "SYN has no hub id: put syn/ or syn.npz beside the other domains"
DIGIT_NAMES = {"syn_regen": "syn", "synthdigits": "syn", "synth": "syn", "mnistm": "mnist_m"}
DOMAINNET = Hub("wltjr1007/DomainNet")
_card = DatasetCard  # short, for the table
_TABLE = (
    _card("digits-4", "MNIST, USPS, SVHN and SYN, as F2DC uses them",
         ("mnist", "usps", "svhn", "syn"), 10, DIGITS, "32x32 RGB",
         "MNIST CC BY-SA 3.0; others none stated", SYN, DIGIT_HUB[:3],
         ("digits", "digit-five", "."), DIGIT_NAMES, {"10": "0"}),
    _card("digit-five", "MNIST, MNIST-M, USPS, SVHN and SYN, as FedKA uses them",
         ("mnist", "mnist_m", "usps", "svhn", "syn"), 10, DIGITS, "32x32 RGB",
         "MNIST CC BY-SA 3.0; others none stated", SYN, DIGIT_HUB,
         ("digits", "digits-4", "."), DIGIT_NAMES, {"10": "0"}),
    _card("office-caltech10", "ten office objects in four looks",
         ("amazon", "caltech", "dslr", "webcam"), 10, OFFICE10, where="images of Gong et al. 2012",
         class_aliases=OFFICE_ALIASES),
    _card("office-31", "31 office objects in three looks", ("amazon", "dslr", "webcam"), 31,
         OFFICE31, where="images of Saenko et al. 2010"),
    _card("office-home", "65 everyday objects in four looks",
         ("art", "clipart", "product", "real_world"), 65, OFFICE_HOME,
         licence="non-commercial research", hub=(Hub("flwrlabs/office-home"),)),
    _card("office-caltech-home", "the common classes of Office-Caltech10 and Office-Home (CSAC)",
         ("amazon", "webcam", "caltech", "art", "clipart", "product", "real_world"), 8,
         tuple(c for c in OFFICE10 if c not in ("headphones", "projector")),
         licence="as Office-Caltech10 and Office-Home", folders=("office-caltech10", "office-home"),
         where="both of office-caltech10 and office-home", class_aliases=OFFICE_ALIASES,
         part=True),
    _card("pacs", "seven objects as photo, art, cartoon and sketch",
         ("photo", "art_painting", "cartoon", "sketch"), 7, PACS, "227x227 RGB",
         hub=(Hub("flwrlabs/pacs"),), aliases={"art": "art_painting"}),
    _card("vlcs", "five objects from four photo collections",
         ("caltech101", "labelme", "sun09", "voc2007"), 5,
         ("bird", "car", "chair", "dog", "person"),
         where="images of Fang et al. 2013",
         aliases={"caltech": "caltech101", "sun": "sun09", "pascal": "voc2007", "voc": "voc2007"}),
    _card("domainnet", "345 objects in six looks", SKETCHY, 345, licence="fair use, see its page",
         hub=(DOMAINNET,)),
    _card("domainnet-10", "ten of the 345 objects, as FDSE uses them", SKETCHY, 10, DOMAINNET10,
         licence="fair use, see its page", hub=(DOMAINNET,), folders=("domainnet",), part=True),
    _card("rotated-mnist", "the same 100 images per class at six angles, clockwise (CSAC)",
         _turned(75), 10, DIGITS, "28x28 RGB", "MNIST CC BY-SA 3.0", hub=DIGIT_HUB[:1],
         folders=("mnist", "digits", "digits-4", "digit-five", "."), base="mnist",
         angles=tuple(range(0, 76, 15))),
    _card("rotated-mnist-10", "MNIST at ten angles, each training image at one of them (FedDebias)",
         _turned(135), 10, DIGITS, "28x28 RGB", "MNIST CC BY-SA 3.0", hub=DIGIT_HUB[:1],
         folders=("mnist", "digits", "digits-4", "digit-five", "."), base="mnist",
         angles=tuple(range(0, 136, 15))),
    _card("cifar10", "ten objects, one domain", ("cifar10",), 10, CIFAR10, "32x32 RGB",
         hub=(Hub("uoft-cs/cifar10", "cifar10", image="img"),), folders=(".",)),
    _card("cifar100", "100 objects, one domain", ("cifar100",), 100, form="32x32 RGB",
         hub=(Hub("uoft-cs/cifar100", "cifar100", image="img", label="fine_label"),),
         folders=(".",)),
    _card("rotated-cifar10", "CIFAR-10 at ten angles, each training image at one of them",
         _turned(135), 10, CIFAR10, "32x32 RGB",
         hub=(Hub("uoft-cs/cifar10", "cifar10", image="img"),), folders=("cifar10", "."),
         base="cifar10", angles=tuple(range(0, 136, 15))),
    _card("amazon-review", "positive and negative reviews of four kinds of goods",
         ("books", "dvd", "electronics", "kitchen"), 2, ("negative", "positive"), "vectors",
         where="reviews of Blitzer et al. 2007, as .review files, as csv with text, label and"
         " domain, or as vectors", aliases={"kitchen_&_housewares": "kitchen"},
         class_aliases={"0": "negative", "1": "positive"}),
    _card("femnist", "handwritten characters by writer", (), 62, form="28x28 RGB",
         licence="BSD 2-Clause",
         hub=(Hub("flwrlabs/femnist", label="character", domain="writer_id"),)),
    _card("fed-isic2019", "skin lesions by hospital", (), 8, licence="CC BY-NC 4.0",
         hub=(Hub("flwrlabs/fed-isic2019", domain="center"),)),
    _card("camelyon17", "tumour in lymph nodes by hospital (WILDS)", (), 2, form="96x96 RGB",
         licence="CC0", where="folder of WILDS with metadata.csv", folders=("camelyon17_v1.0",)),
    _card("iwildcam", "animals by camera trap (WILDS)", (), 182, licence="CDLA-Permissive-1.0",
         where="folder of WILDS with metadata.csv", folders=("iwildcam_v2.0",)),
    _card("civilcomments", "toxic comments by the identity they mention (WILDS)", (), 2,
         form="vectors", licence="CC0", where="folder of WILDS with all_data_with_identities.csv",
         folders=("civilcomments_v1.0",)),
    _card("amazon-wilds", "stars of reviews by reviewer (WILDS)", (), 5, form="vectors",
         where="folder of WILDS with reviews.csv and splits/user.csv",
         folders=("amazon_v2.1", "amazon_v2.0")),
)  # fmt: skip
CATALOGUE: Mapping[str, DatasetCard] = {card.name: card for card in _TABLE}
