"""What people have at a site: folders of odd sizes, tables with gaps, arrays; labels if any."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedshift
from fedshift.adapting.site_data import read_site
from fedshift.core.objective import CLASSIFICATION
from fedshift.data.library.datasets import add
from fedshift.experiment.models import Kept
from fedshift.testing import tiny


def pictures(root: Path, classes: tuple[str, ...], each: int, sizes: tuple[int, ...]) -> Path:
    """The tinted look as files of odd sizes, in a folder per class."""
    tinted = tiny()["tinted"]
    for k, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i, row in enumerate((tinted.y == k).nonzero().flatten()[:each].tolist()):
            image = Image.fromarray(tinted.x[row].numpy())
            side = sizes[i % len(sizes)]
            image.resize((side, side + i % 3)).save(root / name / f"{i}.png")
    return root


def opened(run, raw):
    held = Kept.open(run, None, None, None)
    return read_site(held.inputs, raw, "s", held.classes, CLASSIFICATION)


def test_folders_called_like_classes_are_labels(run, tmp_path):
    found = opened(run, pictures(tmp_path / "s", ("a", "B", "c"), 5, (8, 13, 40)))
    assert found.samples.x.shape == (15, 8, 8, 3)
    # files are in order of their paths, and "B" comes before "a"
    assert found.samples.labels.tolist() == [1] * 5 + [0] * 5 + [2] * 5
    assert bool(found.known.all())


def test_images_outside_of_class_folders_have_no_label(run, tmp_path):
    root = pictures(tmp_path / "s", ("a", "b"), 4, (9,))
    Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save(root / "loose.png")
    found = opened(run, root)
    assert found.known.sum() == 8
    assert found.samples.labels[~found.known].tolist() == [-1]
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save(flat / "1.png")
    assert not opened(run, flat).known.any()


def test_arrays_are_labelled_by_name(run, tmp_path):
    tinted = tiny()["tinted"]
    x, y = tinted.x.numpy()[:6], np.array([0, 1, 2, -1, 1, 0])
    np.savez(tmp_path / "s.npz", x=x, y=y, classes=["c", "zebra", "a"])
    found = opened(run, tmp_path / "s.npz")
    assert found.known.tolist() == [True, False, True, False, False, True]
    assert found.labelled.labels.tolist() == [2, 0, 2]
    np.testing.assert_array_equal(found.samples.x.numpy(), x)
    assert list(fedshift.load_model(run).predict(tmp_path / "s.npz")) == list(
        fedshift.load_model(run).predict(x)
    )


def test_labels_that_cannot_be_used_are_a_note_and_adapting_goes_on(run, tmp_path):
    tinted = tiny()["tinted"]
    np.savez(tmp_path / "s.npz", x=tinted.x.numpy(), y=np.full(40, 7))
    found = fedshift.adapt(run, tmp_path / "s.npz")
    assert found.scores is None
    assert found.notes == (
        "labels are not used: the site's data have label 7; labels go from 0 to 3",
    )


def rows(path, sites, seed=0, label=True):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["site", "age", "pain", *(["ill"] if label else [])])
        for name, shift in sites.items():
            for _ in range(60):
                age, pain = rng.normal(50 + shift, 9), rng.choice(["mild", "bad", "?"])
                ill = int((age - 50 - shift) / 9 + (pain == "bad") > 0.4)
                told = [("yes" if ill else "no") if rng.random() > 0.2 else ""] if label else []
                out.writerow([name, f"{age:.1f}", pain, *told])
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """FedAvg with BatchNorm on a csv with four sites, each prepared with its own statistics."""
    root = tmp_path_factory.mktemp("table")
    sites = {"lyon": 0, "bern": 10, "riga": -5, "oslo": 20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSHIFT_HOME", str(root / "home"))
        add("visits", rows(root / "four.csv", sites),
            table={"label": "ill", "may_drop": 0.5, "statistics": "site"})  # fmt: skip
        fedshift.run("fedavg", "visits", rounds=2, out=root / "run", quiet=True,
                     backbone_options={"hidden": 8, "features": 4})  # fmt: skip
    return root


def test_a_table_at_a_new_site_gets_statistics_of_its_own(table, tmp_path):
    new = rows(tmp_path / "nice.csv", {"nice": 40}, 1)
    found = fedshift.adapt(table / "run", new, out=tmp_path / "m")
    cells = pd.read_csv(new)
    assert found.scores.samples == int(cells["ill"].notna().sum()) < 60
    model = fedshift.load_model(tmp_path / "m")
    ages = model.inputs.read(new, model.site)[:, 0].double().numpy()
    told = cells["age"].to_numpy()
    np.testing.assert_allclose(ages, (told - told.mean()) / told.std(), atol=1e-2)
    assert len(model.predict(new)) == 60  # no site and no reference need be named
    found = fedshift.finetune(tmp_path / "m", new, layers="head", epochs=3)
    assert found.trained + found.scores.samples == int(cells["ill"].notna().sum())


def test_data_of_several_sites_are_warned_of(table, run, tmp_path):
    both = rows(tmp_path / "both.csv", {"nice": 40, "rome": 0}, 1)
    found = fedshift.adapt(table / "run", both)
    told = "the data are of 2 sites (nice, rome); adapt to one at a time"
    assert told in found.verdict.warnings
    for name in ("nice", "rome"):
        pictures(tmp_path / "s" / name, ("a", "b"), 5, (8,))
    assert told in fedshift.adapt(run, tmp_path / "s").verdict.warnings
    assert opened(run, tmp_path / "s" / "nice").several == ()


def test_a_frame_and_rows_are_read_as_the_file_is(table, tmp_path):
    new = rows(tmp_path / "nice.csv", {"nice": 40}, 1)
    frame = pd.read_csv(new, keep_default_na=True)
    several = frame.astype(object).where(frame.notna(), None).to_dict("records")
    found = [fedshift.adapt(table / "run", raw, site="nice") for raw in (new, frame, several)]
    assert len({str(one.scores) for one in found}) == 1
    assert len({str(one.verdict) for one in found}) == 1


def test_a_table_without_labels_or_with_one_nobody_knows(table, tmp_path):
    bare = rows(tmp_path / "bare.csv", {"nice": 40}, 1, label=False)
    assert fedshift.adapt(table / "run", bare).scores is None
    odd = rows(tmp_path / "odd.csv", {"nice": 40}, 1)
    odd.write_text(odd.read_text().replace("yes", "perhaps"))
    found = fedshift.adapt(table / "run", odd)
    assert found.scores is None
    assert found.notes[0].startswith("labels are not used: the label 'perhaps' is not one of")
