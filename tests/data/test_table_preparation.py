"""Preparation of tables: fitted on sums over sites it is the one that pooled rows would give."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedshift.base.errors import DataError
from fedshift.data.sources.tables import statistics
from fedshift.data.sources.tables.federated import agree, fit_sites
from fedshift.data.sources.tables.preparation import (
    CategoryPlan,
    NumberPlan,
    TablePreparation,
    as_days,
    total,
)
from fedshift.data.sources.tables.replay import preparation_of
from fedshift.data.sources.tables.roles import ColumnRole
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.data.sources.tables.statistics import NumberStatistics, of_categories, of_numbers

ROLES = {
    "age": ColumnRole("numeric", ""),
    "chol": ColumnRole("numeric", ""),
    "cp": ColumnRole("categorical", ""),
}


def site(seed: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    age, chol = rng.normal(50 + seed, 9, rows), rng.normal(240, 50, rows)
    chol[rng.random(rows) < 0.3] = np.nan
    cp = rng.choice(np.array(["a", "b", f"only {seed}", None], dtype=object), rows)
    return {"age": age, "chol": chol, "cp": cp}


def pooled(sites):
    return {name: np.concatenate([s[name] for s in sites]) for name in sites[0]}


def sklearns(columns, strategy):
    """The same preparation by scikit-learn; its order: numbers, indicator, categories, missing."""
    numbers = np.stack([columns["age"], columns["chol"]], axis=1)
    cells = columns["cp"][:, None]
    filled = make_pipeline(SimpleImputer(strategy=strategy), StandardScaler())
    most = make_pipeline(
        SimpleImputer(strategy="most_frequent", missing_values=None),
        OneHotEncoder(sparse_output=False),
    )
    both = ColumnTransformer([("n", filled, [0, 1]), ("c", most, [2])])
    out = both.fit_transform(np.concatenate([numbers.astype(object), cells], axis=1))
    lacks = np.isnan(columns["chol"])[:, None], (columns["cp"] == np.array(None))[:, None]
    return np.concatenate([out[:, :2], lacks[0], out[:, 2:], lacks[1]], axis=1).astype(float)


def test_federated_statistics_give_the_pooled_preparation():
    sites = [site(1, 40), site(2, 70), site(3, 25)]
    schema = TableSchema(impute="mean")
    plans, counted = agree(sites, ROLES, schema)
    one, two, three = fit_sites(plans, counted, schema)
    assert one == two == three
    found = np.concatenate([one.apply(s) for s in sites])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, sklearns(pooled(sites), "mean"), atol=1e-5)


def test_a_sites_own_statistics_are_those_of_its_rows():
    sites = [site(1, 41), site(2, 70)]
    schema = TableSchema(statistics="site")
    plans, counted = agree(sites, ROLES, schema)
    own, other = fit_sites(plans, counted, schema)
    assert own != other
    assert own.plans[2].categories == other.plans[2].categories == ("a", "b", "only 1", "only 2")
    expected = sklearns(sites[0], "median")  # without the other site's category
    found = np.delete(own.apply(sites[0]), 6, axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@given(
    arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)),
    arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)),
)
def test_the_median_of_summed_bins_is_off_by_one_percent_at_most(a, b):
    found = (of_numbers(a) + of_numbers(b)).centre("median")
    ordered = np.sort(np.concatenate([a, b]))
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    slack = statistics.ERROR * (abs(middle[0]) + abs(middle[1])) / 2 + 1e-8
    assert abs(found - sum(middle) / 2) <= slack * 1.0001


def test_the_median_of_whole_numbers_below_fifty_is_exact():
    a, b = np.array([0.0, 1, 3, 3]), np.array([-7.0, 44])
    assert (of_numbers(a) + of_numbers(b)).centre("median") == 2


def test_statistics_of_a_union_are_the_sum():
    a, b = np.array([1.0, np.nan, 3.5]), np.array([2.0, -1.0])
    one, whole = of_numbers(a) + of_numbers(b), of_numbers(np.concatenate([a, b]))
    assert (one.rows, one.missing, one.bins) == (whole.rows, whole.missing, whole.bins)
    assert one.moments(2.0) == pytest.approx(whole.moments(2.0))
    assert one.median is None  # the exact one would need the rows
    c, d = np.array(["x", None], dtype=object), np.array(["x", "y"], dtype=object)
    assert of_categories(c) + of_categories(d) == of_categories(np.concatenate([c, d]))


def test_moments_are_those_of_the_filled_column():
    x = np.array([4.0, 8.0, np.nan, np.nan])
    filled = np.where(np.isnan(x), 7.0, x)
    assert of_numbers(x).moments(7.0) == pytest.approx((filled.mean(), filled.std()))
    assert NumberStatistics(0, 0, 0.0, 0.0).moments(0.0) == (0.0, 1.0)
    assert of_numbers(np.full(3, 5.0)).moments(5.0) == (5.0, 1.0)  # no division by zero


def test_a_column_that_a_site_lacks_altogether_is_the_mean_there():
    sites = [{"age": np.array([1.0, 3.0])}, {"age": np.array([np.nan, np.nan])}]
    for kind, expected in (("federated", 0.0), ("site", 0.0)):
        schema = TableSchema(statistics=kind)
        plans, counted = agree(sites, ROLES, schema)
        fitted = fit_sites(plans, counted, schema)[1]
        assert fitted.apply(sites[1]).tolist() == [[expected, 1.0]] * 2


def test_json_replays_the_preparation_at_a_new_site():
    sites = [site(1, 40), site(2, 40)]
    plans, counted = agree(sites, ROLES, TableSchema())
    fitted = plans.fit(total(counted), TableSchema())
    record = {"statistics": "federated", "all": fitted.to_json(), "sites": {}}
    again = preparation_of(json.loads(json.dumps(record)), "a site that joined later")
    assert again == fitted
    new = site(9, 20)  # has a category that nobody had
    x = again.apply(dict(reversed(new.items())))
    assert x.shape[1] == len([f for plan in fitted.plans for f in plan.features])
    unknown = new["cp"] == "only 9"
    assert x[unknown, 3:7].sum() == 0
    with pytest.raises(DataError, match="has no column chol; the model needs it"):
        again.apply({"age": new["age"], "cp": new["cp"]})
    with pytest.raises(DataError, match="each site's own statistics, and 'b' has none"):
        preparation_of({"statistics": "site", "sites": {"a": fitted.to_json()}}, "b")
    with pytest.raises(DataError, match="cannot be read"):
        TablePreparation.from_json({"format": 1})


def test_many_categories_are_hashed_and_their_names_stay_at_home():
    cells = np.array([f"v{i % 60}" for i in range(200)], dtype=object)
    plans, _ = agree([{"cp": cells}], ROLES, TableSchema(one_hot=50, hashed=8))
    (plan,) = plans.plans
    assert (plan.categories, plan.size) == ((), 8)
    x = plan.apply(cells)
    assert (x.sum(axis=1) == 1).all()
    assert (x[0] == x[60]).all()
    assert 4 < (x.sum(axis=0) > 0).sum() <= 8


def test_dates_are_days():
    told = np.array(["1970-01-02", "1971/1/1 10:00", "31.12.1969", "2020-13-01", None], object)
    assert as_days(told)[:3].tolist() == [1, 365, -1]
    assert np.isnan(as_days(told)[3:]).all()


def test_a_missing_category_takes_the_most_frequent_and_is_marked():
    cells = np.array(["b", None, "b", "a"], dtype=object)
    plan = CategoryPlan("c", categories=("a", "b"), indicator=True)
    plan = plan.fit(plan.count(cells), TableSchema())
    assert plan.apply(cells).tolist() == [[0, 1, 0], [0, 1, 1], [0, 1, 0], [1, 0, 0]]
    assert plan.features == ("c a", "c b", "c missing")


def test_a_column_of_another_kind_is_refused():
    with pytest.raises(DataError, match="are of another kind"):
        TablePreparation((NumberPlan("a"),)).fit(
            {"a": of_categories(np.array(["x"], object))}, TableSchema()
        )
