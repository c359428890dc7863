"""The client's half of bodies that left their streams: the real reassembly, mapping and messages,
and a consumer that keeps what it was shown for as long as it likes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pyarrow as pa

from barrage.errors import BodyChannelError, ConnectionLostError, TransportUnavailableError
from barrage.limits import NANOS_PER_MS, Limits
from barrage.proto.release_batch import WAIT_NS, ReleaseBatch
from barrage.transport.shared_memory import ArenaMapping
from barrage.wire.dissociated.lending import Lending, Window
from barrage.wire.dissociated.negotiation import Answer, Claim, ClaimOutcome, Offer
from barrage.wire.dissociated.reassembly import Reassembly
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.tags import next_sequence
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.frame import FlightFrame
from tests.sim.bodies import HOST, TERMS, BodyOptions, BodyPipe, ServerBodies

DISTRUST_NS = 300 * NANOS_PER_MS
"""How long a client that lost a body takes everything inline."""


class Loans:
    """What one client has borrowed of one arena and not given back, over all its streams."""

    def __init__(self) -> None:
        self._loans: dict[int, tuple[BodyReference, int, bytes]] = {}
        self._numbers = 0
        self.lending = Lending()

    def __len__(self) -> int:
        return len(self._loans)

    def borrow(
        self, mapping: ArenaMapping, place: BodyReference, on_back: Callable[[int, int], None]
    ) -> pa.Buffer:
        """A body that is not copied, and what it holds now, to be compared later."""
        self._numbers += 1
        number = self._numbers
        body = mapping.borrow(place, partial(self._back, number, on_back))
        self._loans[number] = (place, body.address, body.to_pybytes())
        self.lending.lend(place.length)
        return body

    def _back(self, number: int, on_back: Callable[[int, int], None], _address: int) -> None:
        place, _, _ = self._loans.pop(number)
        self.lending.take_back(place.length)
        on_back(place.address, place.length)

    def check(self) -> None:
        """Nobody writes where somebody reads."""
        for place, address, content in self._loans.values():
            found = ctypes.string_at(address, place.length)
            assert found == content, f"body {place} was overwritten while it was lent"


class Intake:
    """The messages of one stream, put together. BodyChannelError when a body cannot be had."""

    def __init__(
        self,
        owner: ClientBodies,
        way: BodyWay,
        *,
        mapping: ArenaMapping | None = None,
        pipe: BodyPipe | None = None,
    ) -> None:
        self.way = way
        self.pipe = pipe
        self.limits = owner.limits
        self._is_inline = False
        """The server has said that it gave up the way."""
        self.is_sabotaged = False
        """A reference was spoilt on purpose."""
        self._owner = owner
        self._limits = owner.limits
        self._mapping = mapping
        self._sequence = owner.options.first_number
        self._parts = Reassembly(owner.limits, first=self._sequence)
        self._detached: set[int] = set()
        self.held_count = 0
        """Bodies of this stream that the consumer has and the server does not know to be done
        with."""
        self._window = Window(owner.limits.body_window_bytes, owner.limits.body_window_count)
        self._untold = ReleaseBatch(self._window)
        self._tell_at_ns: int | None = None

    @property
    def is_crowded(self) -> bool:
        return self._parts.is_crowded

    @property
    def is_waiting(self) -> bool:
        """Whether a message waits for a body, a body for its message, or one is on its way."""
        return self._parts.pending_count > 0 or (self.pipe is not None and not self.pipe.is_empty)

    @property
    def has_untold(self) -> bool:
        """Whether bodies were let go and the server was not told yet."""
        return len(self._untold) > 0

    @property
    def may_lose_bodies(self) -> bool:
        """Whether a fault of this stream excuses a missing body."""
        return self.is_sabotaged or (self.pipe is not None and self.pipe.has_failed)

    def close(self) -> None:
        """The stream is over."""
        if self.pipe is not None:
            self.pipe.die()

    def take(self, item: bytes, now_ns: int) -> list[FlightFrame]:
        """One message of the stream; whole ones whose turn it is."""
        frame = decode_flight_data(item, self._limits)
        sequence, self._sequence = self._sequence, next_sequence(self._sequence)
        is_detached = frame.is_detached
        self._is_inline = self._is_inline or frame.inline_reason is not None
        self._parts.receive_header(sequence, frame, expects_body=is_detached, now_ns=now_ns)
        if is_detached:
            assert self.way is not BodyWay.INLINE, "a body is elsewhere without a channel"
            assert not self._is_inline, "a body is elsewhere after the server gave up the way"
            self._owner.outside_count += 1
            self.held_count += 1
            self._detached.add(sequence)
            if self._mapping is not None:
                assert frame.body_reference is not None
                body = self._resolve(BodyReference.decode(frame.body_reference))
                self._parts.receive_body(sequence, body, now_ns)
        return self._whole()

    def poll(self, now_ns: int) -> list[FlightFrame]:
        """Bodies that come by themselves, and the deadline of those that do not."""
        if self.pipe is not None:
            for sequence, body in self.pipe.receive(now_ns):
                self._parts.receive_body(sequence, body, now_ns)
        whole = self._whole()
        since_ns = self._parts.waiting_since_ns
        if since_ns is not None and now_ns - since_ns >= self._limits.body_deadline_ns:
            raise BodyChannelError("a body did not come in time")
        return whole

    def _whole(self) -> list[FlightFrame]:
        self._parts.validate()
        number = self._parts.next_number
        taken = self._parts.take()
        for frame in taken:
            if number in self._detached:
                self._detached.remove(number)
                if self.pipe is not None:
                    self._release(number, 0 if frame.body is None else len(frame.body))
            number = next_sequence(number)
        return taken

    def _resolve(self, place: BodyReference) -> pa.Buffer:
        assert self._mapping is not None
        if self._owner.random.random() < self._owner.options.stale and not self._owner.is_calm:
            self.is_sabotaged = True
            place = replace_generation(place)
        loans = self._owner.loans
        if self._window.can_lend(loans.lending, place.length):
            return loans.borrow(self._mapping, place, self._release)
        body = self._mapping.copy(place)
        self._release(place.address, place.length)
        return body

    def _release(self, number: int, byte_count: int) -> None:
        self.held_count -= 1
        self._untold.add(number, byte_count)

    def releases(self, now_ns: int) -> bytes | None:
        """The message that tells what is done with, when it is time for one."""
        if not self._untold:
            return None
        if self._tell_at_ns is None:
            self._tell_at_ns = now_ns + WAIT_NS
        if not self._untold.is_urgent and now_ns < self._tell_at_ns:
            return None
        self._tell_at_ns = None
        return self._untold.take()


def replace_generation(place: BodyReference) -> BodyReference:
    """A reference to what is not there any more."""
    return place._replace(generation=place.generation + 1)


class ClientBodies:
    """What one client knows about bodies, across its streams."""

    def __init__(self, server: ServerBodies, options: BodyOptions, limits: Limits, seed: int):
        self.options = options
        self.limits = limits
        self.random = Random(seed)
        self.loans = Loans()
        self.losses = 0
        self.outside_count = 0
        self.is_calm = False
        self._server = server
        self._mapping: ArenaMapping | None = None
        self._channel: Answer | None = None
        self._trusts_again_ns = 0
        self._kept: list[tuple[int, pa.Table, list[dict[str, object]]]] = []

    # --- connecting -------------------------------------------------------------------------------

    def prepare(self, now_ns: int) -> tuple[str | None, Intake | None]:
        """The header that claims a channel for the next stream, and what will read that stream if
        the claim is taken."""
        is_asking = self.random.random() < self.options.asking and bool(self.options.ways)
        if not is_asking or now_ns < self._trusts_again_ns:
            return None, None
        answer = self._channel
        if answer is None or self.random.random() < 0.2:
            answer = Answer.from_json(self._server.answer(self._offer().to_json()))
        try:
            return self._open(answer)
        except (TransportUnavailableError, ConnectionLostError):
            self.distrust(now_ns)
            return None, None

    def _offer(self) -> Offer:
        shm, ucx = HOST, TERMS
        if self._misfits():
            shm = replace(shm, user_id=2)
        if self._misfits():
            ucx = replace(ucx, release="2.0")
        order = self.random.sample([BodyWay.SHM, BodyWay.UCX], self.random.randint(1, 2))
        return Offer(shm=shm, terms={BodyWay.UCX: ucx}, order=tuple(order))

    def _misfits(self) -> bool:
        return not self.is_calm and self.random.random() < self.options.misfit

    def _open(self, answer: Answer) -> tuple[str | None, Intake | None]:
        if answer.way is BodyWay.INLINE:
            return None, None
        proof = None
        channel_id = "0" * 32 if self._misfits() else answer.channel_id
        if answer.way is BodyWay.UCX:
            pipe = self._server.connect(answer.channel_id)
            intake = Intake(self, answer.way, pipe=pipe)
        else:
            mapping = self._map(answer)
            self._channel = answer
            proof = bytes(16) if self._misfits() else mapping.proof()
            intake = Intake(self, answer.way, mapping=mapping)
        return Claim(channel_id=channel_id, proof=proof).header(), intake

    def _map(self, answer: Answer) -> ArenaMapping:
        assert answer.arena is not None
        if self._mapping is None or self._mapping.name != answer.arena:
            self._mapping = ArenaMapping.open(answer.arena, directory=self._server.directory)
        return self._mapping

    def accepted(self, intake: Intake | None, header: str | None) -> Intake:
        """What reads the stream after all."""
        if intake is not None and ClaimOutcome.parse(header).way is intake.way:
            return intake
        if intake is not None:
            intake.close()
        self._channel = None
        return Intake(self, BodyWay.INLINE)

    def distrust(self, now_ns: int) -> None:
        """A body was lost: the next streams are inline."""
        self.losses += 1
        self._channel = None
        self._trusts_again_ns = now_ns + DISTRUST_NS

    # --- keeping ----------------------------------------------------------------------------------

    def show(self, rows: pa.Table, now_ns: int) -> None:
        """What a consumer sees; it may keep it."""
        if not self.is_calm and self.random.random() < self.options.keep:
            until_ns = now_ns + self.random.randint(10, 800) * NANOS_PER_MS
            self._kept.append((until_ns, rows, rows.to_pylist()))

    def check(self, now_ns: int) -> None:
        """What is lent and what is kept stays as it was shown."""
        self.loans.check()
        for until_ns, rows, shown in self._kept:
            if until_ns <= now_ns:
                assert rows.to_pylist() == shown, "what a consumer keeps has changed"
        self._kept = [each for each in self._kept if each[0] > now_ns]

    def close(self) -> None:
        self._kept.clear()
        self._mapping = None
