"""A part of all tests, for processes side by side (tools/test_shards.sh)."""


def shard(tests, module_of, number, shards):
    """Every ``shards``-th test from ``number`` on; but tests that share what their module sets up stay together.

    ``module_of`` says which module that is, or None.
    """
    modules, alone = [], 0
    mine = []
    for test in tests:
        module = module_of(test)
        if module is None:
            turn, alone = alone, alone + 1
        else:
            if module not in modules:
                modules.append(module)
            turn = modules.index(module)
        if turn % shards == number:
            mine.append(test)
    return mine


def shared_module(item):
    """The module of a pytest item that has a fixture which is set up once for it, or None."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return item.module.__name__ if any(found[-1].scope == "module" for found in fixtures) else None
