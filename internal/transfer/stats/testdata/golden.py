"""Prints what SciPy says about some groups, as JSON: python golden.py > golden.json

Needs scipy >= 1.11. Without an argument the groups are made from a fixed seed; with
one, they are read from that file of JSON (a list of {"a": [...], "b": [...]}).
"""

import json
import sys

import numpy as np
from scipy import stats


def groups():
    r = np.random.default_rng(11)
    yield [1.0, 2.0, 3.0], [2.5, 3.5, 4.5, 5.5]
    yield [110.1, 112.3, 108.8, 109.9, 111.0], [110.2, 110.4, 109.5, 112.9, 108.1]
    yield [1.0, 2.0, 2.0, 3.0], [2.0, 3.0, 4.0, 4.0, 5.0]  # ties
    for m, n in [(2, 2), (5, 5), (3, 9), (8, 8), (8, 30), (9, 9), (14, 28), (60, 60)]:
        yield r.normal(900, 20, m).tolist(), r.normal(890, 35, n).tolist()
        yield r.lognormal(0, 1, m).tolist(), r.lognormal(0.7, 1, n).tolist()
        yield r.integers(0, 12, m).astype(float).tolist(), r.integers(3, 15, n).astype(float).tolist()


def main():
    given = json.load(open(sys.argv[1])) if len(sys.argv) > 1 else [{"a": a, "b": b} for a, b in groups()]
    cases, ps = [], []
    for g in given:
        a, b = np.array(g["a"]), np.array(g["b"])
        t = stats.ttest_ind(a, b, equal_var=False)
        ci = t.confidence_interval(0.95)
        u = stats.mannwhitneyu(a, b, alternative="two-sided", method="auto")
        mean = stats.t.interval(0.95, len(a) - 1, loc=a.mean(), scale=stats.sem(a))
        cases.append(
            {"a": a.tolist(), "b": b.tolist(), "t": t.statistic, "df": t.df, "p": t.pvalue, "low": ci.low, "high": ci.high,
             "u": u.statistic, "up": u.pvalue, "mean_low": mean[0], "mean_high": mean[1]}
        )
        ps.append(float(t.pvalue))
    print(json.dumps({"cases": cases, "p": ps, "bh": stats.false_discovery_control(ps).tolist()}))


main()
