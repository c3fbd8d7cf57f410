"""The summary's lines of what tests counted."""

from types import SimpleNamespace

import counts


def test_numbers_of_all_reports_are_added_up():
    reports = []
    first, second = {"cases": 1_000, "passed": 3}, {"cases": 2, "refused": 1}
    for when, numbers in (("call", first), ("call", second), ("teardown", second)):
        properties = [("another", 1)]
        counts.note(lambda *pair, properties=properties: properties.append(pair), "a list", numbers)
        reports.append(SimpleNamespace(when=when, user_properties=properties))
    counts.note(lambda *pair: reports[0].user_properties.append(pair), "another list", {"models": 1})
    assert counts.lines([*reports, object()]) == ["a list: 1,002 cases, 3 passed, 1 refused", "another list: 1 models"]
