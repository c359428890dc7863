"""The window of bodies outside a stream against a naive model of what is out."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barrage.limits import Limits
from barrage.proto.body_window import Admission, BodyWindow, WindowState


class WindowMachine(RuleBasedStateMachine):
    """One stream that sends bodies in turn and a peer that gives them back when it likes, or says
    anything."""

    @initialize(
        window_bytes=st.sampled_from([40, 100]), count=st.integers(1, 5), wait=st.integers(0, 30)
    )
    def begin(self, window_bytes, count, wait):
        self.limits = Limits(
            body_inline_bytes_max=4,
            body_window_bytes=window_bytes,
            body_window_count=count,
            body_wait_ns_max=wait,
            body_lease_ns_max=200,
        )
        self.window = BodyWindow(self.limits)
        self.now_ns = 0
        self.out: list[tuple[int, int, int]] = []
        """Id, bytes, since when."""
        self.next_id = 0
        self.blocked_since: int | None = None
        """Since when the stream is refused without credit."""
        self.is_abandoned = False

    def fits(self, size):
        total = sum(each[1] for each in self.out) + size
        return len(self.out) < self.limits.body_window_count and (
            total <= self.limits.body_window_bytes
        )

    def note_age(self):
        if self.out and self.now_ns - self.out[0][2] > self.limits.body_lease_ns_max:
            self.is_abandoned = True

    @rule(step=st.integers(0, 40))
    def time_goes_by(self, step):
        self.now_ns += step

    @rule(size=st.integers(0, 120))
    def send(self, size):
        self.note_age()
        admission = self.window.admit(size, self.now_ns)
        if self.is_abandoned or size <= 4 or size > self.limits.body_window_bytes:
            assert admission is Admission.INLINE
        elif admission is Admission.NOW:
            assert self.fits(size)
            self.window.sent(self.next_id, size, self.now_ns)
            self.out.append((self.next_id, size, self.now_ns))
            self.next_id += 1
        elif self.blocked_since is None:
            assert not self.fits(size), "only a full window refuses"
            self.blocked_since = self.now_ns
            has_waited = self.limits.body_wait_ns_max == 0
            assert admission is (Admission.INLINE if has_waited else Admission.WAIT)
        elif self.now_ns - self.blocked_since >= self.limits.body_wait_ns_max:
            assert admission is Admission.INLINE, "waiting has an end"
        elif self.window.state is WindowState.WAITING:
            assert admission is Admission.WAIT
            assert not self.fits(size)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def give_back(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.out), unique=True, min_size=1))
        assert self.window.released([each[0] for each in chosen], self.now_ns) == len(chosen)
        self.out = [each for each in self.out if each not in chosen]
        self.blocked_since = None
        self.note_age()

    @rule(ids=st.lists(st.integers(1000, 1010) | st.just(2**64 - 1), max_size=5))
    def give_back_what_is_not_out(self, ids):
        self.note_age()
        assert self.window.released(ids, self.now_ns) == 0

    @precondition(lambda self: self.now_ns > 300)
    @rule()
    def lose_the_way(self):
        self.window.abandon()
        self.is_abandoned = True

    @invariant()
    def what_is_out_is_counted(self):
        if not hasattr(self, "window"):
            return
        self.window.validate()
        assert self.window.pending_count == len(self.out)
        assert self.window.pending_bytes == sum(each[1] for each in self.out)
        assert self.window.oldest_ns == (self.out[0][2] if self.out else None)
        assert (self.window.state is WindowState.ABANDONED) <= self.is_abandoned


TestBodyWindow = WindowMachine.TestCase
