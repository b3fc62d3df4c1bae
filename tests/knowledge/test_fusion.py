"""The fusion of words and meaning: properties that hold for any scores."""

import math

from hypothesis import given
from hypothesis import strategies as st

from knowledge.embedding import fusion

SCORES = st.dictionaries(st.integers(1, 30), st.floats(0.001, 50), max_size=12)
COSINES = st.dictionaries(st.integers(1, 30), st.floats(-1, 1), max_size=12)
WEIGHTS = st.floats(0, 1)


@given(SCORES, COSINES, WEIGHTS)
def test_scores_are_in_zero_to_one_and_every_candidate_has_one(keyword, cosines, alpha):
    fused = fusion.fuse(keyword, cosines, alpha)
    assert fused.keys() == keyword.keys() | cosines.keys()
    assert all(0 <= each.score <= 1 for each in fused.values())


@given(SCORES, COSINES, WEIGHTS)
def test_what_is_better_by_both_is_never_behind(keyword, cosines, alpha):
    fused = fusion.fuse(keyword, cosines, alpha)
    for one in fused:
        for other in fused:
            better = keyword.get(one, 0) >= keyword.get(other, 0) and cosines.get(one, 0) >= max(
                0, cosines.get(other, 0)
            )
            assert not better or fused[one].score >= fused[other].score


@given(SCORES, COSINES, WEIGHTS)
def test_equal_candidates_share_a_score(keyword, cosines, alpha):
    twice = {key + 100 * n: value for key, value in keyword.items() for n in (0, 1)}
    both = {key + 100 * n: value for key, value in cosines.items() for n in (0, 1)}
    fused = fusion.fuse(twice, both, alpha)
    assert all(fused[key].score == fused[key + 100].score for key in fused if key < 100)


@given(SCORES, COSINES, WEIGHTS, st.floats(0.01, 100))
def test_the_unit_of_the_scores_does_not_matter(keyword, cosines, alpha, factor):
    fused = fusion.fuse(keyword, cosines, alpha)
    scaled = fusion.fuse({key: value * factor for key, value in keyword.items()}, cosines, alpha)
    assert all(math.isclose(fused[key].score, scaled[key].score, abs_tol=2e-6) for key in fused)


@given(SCORES, COSINES, st.floats(0, 0.99), st.sets(st.integers(1, 30), max_size=3))
def test_nothing_is_before_the_only_documents_with_all_words_and_both_groups_keep_their_order(
    keyword, cosines, alpha, certain
):
    certain &= keyword.keys()
    plain, fused = fusion.fuse(keyword, cosines, alpha), fusion.fuse(keyword, cosines, alpha, certain)
    for one in fused:
        for other in fused:
            if (one in certain) == (other in certain):
                assert plain[one].score < plain[other].score or fused[one].score >= fused[other].score
            elif one in certain:
                assert fused[one].score >= 0.5 >= fused[other].score


@given(WEIGHTS, WEIGHTS, WEIGHTS)
def test_alpha_falls_with_the_words_that_are_covered_and_never_to_nothing(configured, one, other):
    less, more = sorted((one, other))
    assert fusion.alpha(configured, more) <= fusion.alpha(configured, less) <= configured + 1e-6
    assert math.isclose(fusion.alpha(configured, 1), configured * fusion.COVERED, abs_tol=1e-6)


def test_rare_words_weigh_more_and_words_that_are_nowhere_count_as_not_covered():
    rare, common = fusion.weight(1, 1000), fusion.weight(900, 1000)
    assert rare > 10 * common
    words = [fusion.Word(1, rare, True), fusion.Word(900, common, True)]
    assert fusion.coverage(words, 1000) == 1
    assert 0.4 < fusion.coverage([*words, fusion.Word(0, 0.0, False)], 1000) < 0.6
    assert fusion.coverage([], 1000) == 0
