"""Running a test's work in several threads at once."""

import threading


def together(count, work):
    """Call ``work(0)`` to ``work(count - 1)``, each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_time(work, seconds=5.0):
    """Call ``work`` in a thread of its own, and fail where it waits for ever, as for a lock that it has itself."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits"
    if raised:
        raise raised[0]
