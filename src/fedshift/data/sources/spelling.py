"""One spelling for names that sites write with other capitals: ``Cat`` here and ``cat`` there.

Readers of folders (``discover``) agree on classes with it, those of tables on classes
(``tables.targets``) and on the categories of a column (``tables.agreement``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def one_spelling(sites: Iterable[Iterable[str]]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What each name that occurs in several spellings becomes, and remarks for the report.

    Names that one site tells apart, as ``a`` and ``A`` of handwriting, stay several.

    >>> one_spelling([["Cat", "dog"], ["cat", "dog"]])[0]
    {'Cat': 'cat', 'cat': 'cat'}
    >>> one_spelling([["a", "A"], ["a"]])[0]
    {}
    """
    at = [{*names} for names in sites]
    spelt = sorted(set().union(*at))
    several = {fold for fold, n in Counter(map(str.casefold, spelt)).items() if n > 1}
    apart = {fold for found in at for fold, n in Counter(map(str.casefold, found)).items() if n > 1}
    names = {v: v.casefold() for v in spelt if v.casefold() in several - apart}
    notes = [taken_as_the_same(names)] if names else []
    if apart:
        kept = ", ".join(v for v in spelt if v.casefold() in apart)
        notes.append(f"names differ in capitals only and stay several, as one site has: {kept}")
    return names, tuple(notes)


def taken_as_the_same(names: Mapping[str, str]) -> str:
    """The remark on names that became others."""
    changed = ", ".join(f"{k} = {v}" for k, v in sorted(names.items()) if k != v)
    return f"sites write names differently; taken as the same: {changed}"
