"""Interleavings: orders of events that a seed repeats.

``seeded_loop``     an event loop whose ready tasks run in random order, in virtual time
``seeded_threads``  threads that run one at a time and change places at seams
``whole``           a server and its clients, ``inproc://``, in such a world of threads
``objects/``        a module for each object with more than one caller: ``explore(seed)`` raises
                    when an order breaks it; ``CANARIES`` are faults put back that must be found

Two libraries were looked at first: looptime has a loop in virtual time whose order is asyncio's
own; frontrun (0.7, alpha) schedules threads by tracing, has no event loop in virtual time and comes
as 33,000 lines with a compiled part. These two files do both, on one clock.

``python -m tests.interleaving --seeds 1000 [--first N] [--object NAME]`` explores and prints a line
of JSON at the end; ``--seed N`` runs one.
"""
