"""Running a test's work in several threads at once."""

import threading


def together(count, work):
    """Call ``work(0)`` to ``work(count - 1)``, each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
