"""Which phonemes belong to which written word: espeak joins words ("of the" is one group) or expands them."""

from __future__ import annotations

from collections.abc import Sequence

_STRESS = frozenset("ˈˌː ")


def weigh_group(group: Sequence[str]) -> int:
    """How many sounds a group of phonemes has: phonetic letters, without stress and punctuation."""
    return sum(1 for phoneme in group if phoneme not in _STRESS and any(c.isalpha() for c in phoneme))


def weigh_word(word: str) -> int:
    """How much is to be spoken in a written word: 1 a letter, 4 a digit, 0 for a lone dash."""
    return sum(4 if c.isdigit() else 1 for c in word if c.isalnum())


def match_words(words: Sequence[int], groups: Sequence[int]) -> list[tuple[float, float]]:
    """Lay written words on phoneme groups, in order.

    Args:
        words: Weight of each word (:func:`weigh_word`).
        groups: Weight of each group (:func:`weigh_group`).

    Returns:
        For each word its (begin, end) on the axis of groups: 1.5 is the middle of the second group. A word
        without letters has no length and lies where the word before it ends.

    The matching with the least total difference of weights is taken; one group may hold up to four words, and
    one word up to four groups (an abbreviation that is spelt out).
    """
    sounding = [i for i, weight in enumerate(words) if weight]
    spans = _align([words[i] for i in sounding], list(groups))
    places: list[tuple[float, float]] = []
    at = 0.0
    next_span = iter(spans)
    for weight in words:
        if weight:
            begin, end = next(next_span)
            places.append((begin, end))
            at = end
        else:
            places.append((at, at))
    return places


_BAND = 8
"""How many groups the matching may stray from the diagonal; it bounds the work for long texts."""

_STEPS = ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (1, 4))


def _align(words: list[int], groups: list[int]) -> list[tuple[float, float]]:
    """Begin and end of each word on the axis of groups."""
    if len(words) == len(groups):
        return [(float(i), float(i + 1)) for i in range(len(words))]
    # best[i][j]: least cost of laying the first i words on the first j groups, and the step that led there.
    best: list[dict[int, tuple[float, tuple[int, int]]]] = [{} for _ in range(len(words) + 1)]
    best[0][0] = (0.0, (0, 0))
    slope = len(groups) / max(1, len(words))
    for i in range(len(words)):
        for j in sorted(best[i]):
            if abs(j - i * slope) > _BAND:
                continue
            cost = best[i][j][0]
            for w, g in _STEPS:
                if i + w > len(words) or j + g > len(groups):
                    continue
                off = abs(sum(words[i : i + w]) - sum(groups[j : j + g])) + 0.5 * (w + g - 2)
                known = best[i + w].get(j + g)
                if known is None or cost + off < known[0]:
                    best[i + w][j + g] = (cost + off, (w, g))
    if len(groups) not in best[len(words)]:
        return _in_proportion(words, len(groups))
    spans: list[tuple[float, float]] = []
    i, j = len(words), len(groups)
    while i:
        w, g = best[i][j][1]
        i, j = i - w, j - g
        spans[:0] = [(j + a * g, j + b * g) for a, b in _shares(words[i : i + w])]
    return spans


def _in_proportion(words: list[int], groups: int) -> list[tuple[float, float]]:
    return [(a * groups, b * groups) for a, b in _shares(words)]


def _shares(weights: list[int]) -> list[tuple[float, float]]:
    total = sum(weights)
    done, shares = 0, []
    for weight in weights:
        shares.append((done / total, (done + weight) / total))
        done += weight
    return shares
