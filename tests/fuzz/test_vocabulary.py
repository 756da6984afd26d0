"""Every word of the language is drawn by some family of the fuzzer's programs, or excepted with a reason."""

from __future__ import annotations

import pytest
import tile_fuzz
import vocabulary


def test_every_word_is_drawn_or_excepted() -> None:
    """A word that is new is asked for here; one that is drawn is no exception any more."""
    firsts = {
        tile_fuzz.WORDS: 560,
        0: 60,
        tile_fuzz.LOOPS: 60,
        tile_fuzz.SCALED: 120,
        tile_fuzz.THREADS: 250,
        tile_fuzz.HAND: 80,
        tile_fuzz.ENGINE: 40,
    }
    found: set[str] = set()
    for seed in (first + at for first, count in firsts.items() for at in range(count)):
        found |= vocabulary.drawn([seed])
        if vocabulary.missing(found)[0] <= set(vocabulary.EXCEPTED):
            break
    words, _ = vocabulary.missing(found)
    assert words == set(vocabulary.EXCEPTED)


@pytest.mark.proof
def test_every_parameter_that_means_something_is_given_or_known_not_to_be() -> None:
    words, given = vocabulary.missing(vocabulary.found_by(500))
    assert words == set(vocabulary.EXCEPTED)
    assert sorted(given - vocabulary.NOT_GIVEN.keys()) == []


def test_words_are_told_whatever_they_are_called() -> None:
    """By any of their names, as types of a text, with what a call gives by place and by name."""
    text = 'A: T.Tensor((4,), "int8")\nT.Unroll(0, stop=4)\nx = T.half(1)\nB.unroll(3)\nT.nothing()\n'
    assert set(vocabulary.said(text)) == {
        "Tensor", "Tensor shape", "Tensor dtype", "int8", "unroll", "unroll start", "unroll stop", "half",
    }  # fmt: skip
