"""One public method of a client or a server, drawn by the seed, called by two at the same time, and
beside whoever closes the object; see ``tests/interleaving/test_public_methods.py``."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from functools import partial

from tests.interleaving.objects.client_sync import pass_on_after_the_end
from tests.interleaving.public_calls import CLASSES, methods
from tests.interleaving.test_public_methods import run_one, scene_of
from tests.interleaving.whole import run_whole

CALLED = [(kind, method) for kind in CLASSES for method in methods(kind)]


def explore(seed: int) -> None:
    source = random.Random(seed)
    kind, method = source.choice(CALLED)
    work = partial(run_one, scene_of(kind), kind, method, source.random() < 0.8)
    try:
        run_whole(work, seed)
    except BaseException as error:
        error.add_note(f"{kind.__name__}.{method}")
        raise


def wait_for_a_loop_that_has_ended() -> AbstractContextManager[object]:
    """As it was in the synchronous client."""
    return pass_on_after_the_end()


CANARIES = (wait_for_a_loop_that_has_ended,)
