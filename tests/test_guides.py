"""What `guides` does with the blocks of a guide."""

import pytest

from guides import patched

TEXT = "one\ntwo\n\nthree\ntwo\n"


@pytest.mark.parametrize(
    ("diff", "after"),
    [
        (" one\n+more\n", "one\nmore\ntwo\n\nthree\ntwo\n"),
        ("-one\n", "two\n\nthree\ntwo\n"),
        (" two\n\n-three\n+3\n", "one\ntwo\n\n3\ntwo\n"),
        ("+zero\n one\n@@\n three\n-two\n", "zero\none\ntwo\n\nthree\n"),
    ],
)
def test_hunks_change_what_they_name(diff, after):
    assert patched("x", TEXT, diff) == after


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        (" two\n+more\n", "2 times"),
        (" four\n+more\n", "0 times"),
        (" wo\n+more\n", "0 times"),
        (" one\n two\n", "changes nothing"),
        ("one\n+more\n", "no hunk"),
        ("", "no hunk"),
    ],
)
def test_what_does_not_fit_is_an_error(diff, said):
    with pytest.raises(AssertionError, match=said):
        patched("x", TEXT, diff)
