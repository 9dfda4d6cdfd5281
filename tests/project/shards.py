"""Distributes tests among parallel processes (tools/test_shards.sh): each takes the next group when it is free."""

import fcntl
import os


def groups(tests, module_of):
    """Lists of tests that one process runs: tests that share a fixture of their module, then each other test alone.

    ``module_of(test)`` is that module, or None. The large groups come first, so that none of them starts last.
    """
    shared, alone = {}, []
    for test in tests:
        module = module_of(test)
        if module is None:
            alone.append([test])
        else:
            shared.setdefault(module, []).append(test)
    return [*shared.values(), *alone]


def take(counter):
    """The next number, from 0 on, of a file that several processes count in."""
    descriptor = os.open(counter, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        number = int(os.read(descriptor, 20) or b"0")
        os.pwrite(descriptor, str(number + 1).encode(), 0)
        return number
    finally:
        os.close(descriptor)


def taken(tests, module_of, counter):
    """Yields the tests that this process runs. All processes must have collected the same tests in the same order."""
    parts = groups(tests, module_of)
    while (number := take(counter)) < len(parts):
        yield from parts[number]


def shared_module(item):
    """The module of a pytest item that has a fixture which is set up once for it, or None."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return item.module.__name__ if any(found[-1].scope == "module" for found in fixtures) else None
