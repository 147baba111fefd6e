from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from django_locks import LeaseLost, LockNotAcquired, StoreUnavailable, conf, locks, renewal, signals
from tests.faults import Fault, failing, patched

LONG = os.environ.get("LONG") == "1"

pytestmark = pytest.mark.usefixtures("memory_locks")


@pytest.fixture
def store(memory_locks):
    return conf.entries("default").store


def wait_for(condition: Callable[[], object], seconds: float = 5.0) -> float:
    """Wait until it is true, and return the moment."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return time.monotonic()


def hold_steadily(guard, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        guard.check()
        assert locks.get(guard.name).fence == guard.fence
        time.sleep(0.02)


def renewers():
    names = ("django_locks timer", "django_locks renewer", "django_locks announcer")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


class Losses(list):
    """Collects what `on_lost` is given, with the moment and the thread."""

    def __call__(self, guard):
        self.append((guard, time.monotonic(), threading.current_thread()))


class Hanging:
    """Lets some calls of a verb hang until the test ends or ``go`` is set, and do their work only then."""

    def __init__(self, store, verb="renew", which=lambda number: True, done_before=False):
        self.go = threading.Event()
        self.calls, self.over = itertools.count(1), []
        self.which, self.done_before = which, done_before
        self.patch = patched(store, verb, self.call)

    def call(self, real, *args, **kwargs):
        if not self.which(next(self.calls)):
            return real(*args, **kwargs)
        if self.done_before:
            answer = real(*args, **kwargs)
            self.go.wait(10)
            self.over.append(answer)
            return answer
        self.go.wait(10)
        answer = real(*args, **kwargs)
        self.over.append(answer)
        return answer

    def __enter__(self):
        self.patch.__enter__()
        return self

    def __exit__(self, *args):
        self.patch.__exit__(*args)
        self.go.set()


class Batches(list):
    """Collects the sizes of the batches that a store is asked to renew."""

    def __call__(self, real, leases):
        self.append(len(leases))
        return real(leases)


# Renewal


def test_lease_is_held_far_longer_than_its_ttl():
    with locks.lock("x", ttl=0.3) as guard:
        hold_steadily(guard, 0.6)


def test_lease_is_renewed_at_a_third_of_its_ttl(store):
    moments = []
    with patched(store, "renew", lambda real, leases: moments.append(time.monotonic()) or real(leases)):
        with locks.lock("x", ttl=0.9):
            start = time.monotonic()
            wait_for(lambda: len(moments) == 3)
    assert moments[0] - start == pytest.approx(0.3, abs=0.1)
    assert moments[2] - moments[0] == pytest.approx(0.6, abs=0.15)


def test_many_leases_go_out_in_at_most_two_batches_a_period(store):
    batches = Batches()
    guards = []
    for number in range(300):
        guards.append(locks.acquire(f"x{number}", ttl=1.2))
        time.sleep(0.001)  # spread over one period
    with patched(store, "renew", batches):
        time.sleep(1.2)  # what is counted is what happens in this time
        periods = 1.2 / 0.4
    assert all(guard.release() for guard in guards)
    assert len(batches) <= 2 * (periods + 1)
    assert sum(batches) >= 300 * (periods - 1)


def test_lease_taken_while_others_are_held_is_renewed_on_time():
    with locks.lock("long", ttl=60), locks.lock("short", ttl=0.3) as guard:
        hold_steadily(guard, 0.6)


def test_dropped_guard_is_renewed_no_more():
    with pytest.warns(ResourceWarning):
        locks.acquire("x", ttl=0.4)
    start = time.monotonic()
    assert wait_for(lambda: locks.get("x") is None) - start < 0.6


def test_guard_dropped_after_a_failed_renewal_is_renewed_no_more(store):
    gc.disable()  # it must go by its reference count alone
    try:
        with failing(store, "renew"):
            guards = [locks.acquire(name, ttl=1.2) for name in "xy"]
            wait_for(lambda: all(guard._fault for guard in guards))
            with pytest.warns(ResourceWarning) as warned:
                guards.pop()
                wait_for(lambda: warned.list, 0.3)
        guards[0].release()
    finally:
        gc.enable()


def test_guard_at_the_address_of_a_dropped_one_is_renewed():
    keeper = renewal.Keeper()

    class Guard:
        due = deadline = 1e18
        window = 1.0
        in_flight = float("inf")

    first, second = Guard(), Guard()
    keeper.add(first)
    snapshot = list(keeper._guards)
    keeper.remove(first)
    keeper.add(second)
    assert len(snapshot) == len(keeper._guards) == 1
    assert keeper._held() == [second]
    keeper.remove(second)


def test_without_renewal_the_lease_ends_at_its_ttl(store):
    batches = Batches()
    with patched(store, "renew", batches):
        guard = locks.acquire("x", ttl=0.4, renew=False)
        start = time.monotonic()
        assert wait_for(lambda: guard.lost) - start == pytest.approx(0.4, abs=0.1)
    assert batches == []


def test_lease_that_max_hold_shortens_is_not_believed_in_for_longer_than_it_lasts(store):
    acquire = store.acquire

    def slow_acquire(*args):
        fence = acquire(*args)
        time.sleep(0.2)  # the answer is on its way
        return fence

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "acquire", slow_acquire)
        guard = locks.acquire("x", ttl=10, max_hold=5)
    believed, stored = guard.remaining, locks.get("x").remaining
    assert stored - 0.1 < believed <= stored + 0.01
    guard.release()


def test_max_hold_ends_the_lease_although_it_is_renewed():
    losses = Losses()
    guard = locks.acquire("x", ttl=0.3, max_hold=1.0, on_lost=losses)
    start = time.monotonic()
    hold_steadily(guard, 0.6)
    assert wait_for(lambda: locks.get("x") is None) - start == pytest.approx(1.0, abs=0.15)
    wait_for(lambda: losses)
    with pytest.raises(LeaseLost, match="as long as max_hold allows"):
        guard.check()


def test_extended_lease_has_its_new_ttl_from_then_on(store):
    guard = locks.acquire("x", ttl=0.3)
    guard.extend(30)
    assert 29 < guard.remaining <= 30
    assert 29 < locks.get("x").remaining <= 30
    guard.extend(0.4)
    hold_steadily(guard, 0.6)
    guard.release()


def test_extension_of_a_lost_lease_raises():
    guard = locks.acquire("x")
    locks.force_release("x")
    with pytest.raises(LeaseLost, match="'x'"):
        guard.extend()
    assert guard.lost


def test_extension_that_the_store_cannot_make_leaves_the_lease_as_it_was(store):
    guard = locks.acquire("x", ttl=30)
    with failing(store, "renew"), pytest.raises(StoreUnavailable):
        guard.extend(60)
    assert guard.ttl == 30
    assert guard.release() is True


def test_detached_lease_is_renewed_by_whoever_adopts_it():
    first = locks.acquire("x", ttl=0.5)
    owner = first.detach()
    assert not first.lost
    second = locks.adopt("x", owner, ttl=0.5)
    assert second.fence == first.fence
    hold_steadily(second, 1.2)
    assert first.release() is False
    assert second.release() is True


def test_detached_lease_that_nobody_adopts_ends_with_its_ttl():
    owner = locks.acquire("x", ttl=0.4).detach()
    wait_for(lambda: locks.get("x") is None, 0.8)
    with pytest.raises(LeaseLost):
        locks.adopt("x", owner)


# Loss


def test_unreachable_store_is_a_loss_at_two_thirds_of_the_ttl(store, caplog):
    losses, told = Losses(), []

    def hear(sender, **what):
        told.append(what)

    signals.lease_lost.connect(hear)
    try:
        with failing(store, "renew"):
            start = time.monotonic()
            guard = locks.acquire("x", ttl=0.9, on_lost=losses)
            lost_at = wait_for(lambda: guard._state.value == "lost")
            wait_for(lambda: losses)
            time.sleep(0.3)
    finally:
        signals.lease_lost.disconnect(hear)
    assert lost_at - start == pytest.approx(0.6, abs=0.1)
    [(lost, moment, thread)] = losses
    assert lost is guard
    assert moment - start == pytest.approx(0.6, abs=0.2)
    assert thread is not threading.current_thread()
    [what] = told
    assert (what["alias"], what["name"], what["guard"]) == ("default", "x", guard)
    assert "unreachable" in what["reason"]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    text = record.getMessage()
    assert all(part in text for part in ("'x'", "'default'", guard.holder, "taken 0.6 s ago", "connection reset"))
    assert (record.lock, record.lock_store, record.holder, record.fence) == ("x", "default", guard.holder, guard.fence)
    assert guard.owner not in caplog.text


def test_store_that_hangs_is_a_loss_noticed_on_time(store):
    losses = Losses()
    with Hanging(store):
        start = time.monotonic()
        guard = locks.acquire("x", ttl=0.9, on_lost=losses)
        wait_for(lambda: losses)
        assert losses[0][1] - start == pytest.approx(0.6, abs=0.15)
        with pytest.raises(LeaseLost, match="not renewed in time"):
            guard.check()


def test_late_success_does_not_bring_a_lost_guard_back(store):
    with Hanging(store) as hanging:
        guard = locks.acquire("x", ttl=0.9)
        wait_for(lambda: guard.lost)
        hanging.go.set()
        wait_for(lambda: hanging.over)
        assert hanging.over[0] == {"x"}  # the store did renew it
        time.sleep(0.1)
    assert guard.lost
    assert guard.remaining == 0
    with pytest.raises(LeaseLost):
        guard.check()
    wait_for(lambda: locks.get("x") is None)


def test_loss_is_seen_by_the_flag_before_another_is_granted(store):
    guard = locks.acquire("x", ttl=1.5)
    granted = []
    with failing(store, "renew"):
        other = threading.Thread(target=lambda: granted.append((locks.acquire("x", wait=5), time.monotonic())))
        other.start()
        lost_at = wait_for(lambda: guard.lost)
        other.join()
    assert lost_at < granted[0][1]
    granted[0][0].release()


def test_errors_that_end_before_two_thirds_cost_no_lease(store, caplog):
    failures = failing(store, "renew")
    with locks.lock("x", ttl=0.9) as guard:
        with failures:
            wait_for(lambda: guard._fault)
            time.sleep(0.1)
        hold_steadily(guard, 0.9)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_refused_renewal_is_a_loss_at_once():
    losses = Losses()
    guard = locks.acquire("x", ttl=0.9, on_lost=losses)
    start = time.monotonic()
    locks.force_release("x")
    wait_for(lambda: losses)
    assert losses[0][1] - start < 0.5  # the renewal at 0.3 s, not the deadline at 0.6 s
    with pytest.raises(LeaseLost, match="freed by force"):
        guard.check()


def test_refused_renewal_names_the_successor(caplog):
    losses = Losses()
    guard = locks.acquire("x", ttl=0.45, on_lost=losses)
    locks.force_release("x")
    with locks.lock("x"):
        wait_for(lambda: losses)
    assert guard.lost
    assert "taken over" in caplog.text


def test_loss_of_one_lease_leaves_the_others_of_its_batch():
    with locks.lock("a", ttl=0.45) as kept:
        guard = locks.acquire("b", ttl=0.45)
        locks.force_release("b")
        wait_for(lambda: guard.lost)
        hold_steadily(kept, 0.6)


def test_successor_of_a_lost_lease_is_renewed_in_the_same_process(store):
    with failing(store, "renew"):
        lost = locks.acquire("x", ttl=0.5)
        wait_for(lambda: lost.lost)
        with pytest.raises(LeaseLost):
            lost.check()
    with locks.lock("x", ttl=0.5, wait=2) as guard:
        hold_steadily(guard, 0.6)
        assert lost.release() is False
    assert locks.get("x") is None


def test_renewal_refused_because_of_the_release_is_no_loss(store):
    losses = Losses()
    with Hanging(store, "release", done_before=True) as hanging:
        guard = locks.acquire("x", ttl=0.45, on_lost=losses)
        results = []
        leaving = threading.Thread(target=lambda: results.append(guard.release()))
        leaving.start()
        wait_for(lambda: locks.get("x") is None)
        time.sleep(0.5)  # renewals that are due now would be refused
        hanging.go.set()
        leaving.join()
    assert results == [True]
    assert guard.released
    assert not guard.lost
    assert losses == []


def test_renewal_on_its_way_that_comes_after_the_release_is_no_loss(store):
    losses = Losses()
    guard = locks.acquire("x", ttl=0.45, on_lost=losses)
    with Hanging(store, "renew") as renewing, Hanging(store, "release", done_before=True) as releasing:
        wait_for(lambda: guard.in_flight < float("inf"))
        results = []
        leaving = threading.Thread(target=lambda: results.append(guard.release()))
        leaving.start()
        wait_for(lambda: locks.get("x") is None)
        renewing.go.set()
        wait_for(lambda: renewing.over)
        assert renewing.over[0] == set()
        time.sleep(0.1)
        releasing.go.set()
        leaving.join()
    assert results == [True]
    assert losses == []
    assert not guard.lost


def test_release_by_two_threads_at_once_is_done_once_and_no_loss(store):
    losses, results = Losses(), []
    guard = locks.acquire("x", on_lost=losses)
    with Hanging(store, "release", lambda number: number == 1, done_before=True) as hanging:
        first = threading.Thread(target=lambda: results.append(guard.release()))
        first.start()
        wait_for(lambda: locks.get("x") is None)
        assert guard.release() is False
        hanging.go.set()
        first.join()
    assert results == [True]
    assert losses == []
    assert not guard.lost


def test_failed_release_is_followed_by_renewals_again(store):
    guard = locks.acquire("x", ttl=0.45)
    with failing(store, "release", times=1), pytest.raises(StoreUnavailable):
        guard.release()
    hold_steadily(guard, 0.6)
    assert guard.release() is True


def test_release_that_hangs_until_the_lease_is_over_and_fails_is_a_loss(store):
    losses = Losses()

    def slow(real, *args):
        time.sleep(0.5)
        raise store.unavailable("release", "x", Fault("timed out"))

    guard = locks.acquire("x", ttl=0.45, on_lost=losses)
    with patched(store, "release", slow), pytest.raises(StoreUnavailable):
        guard.release()
    assert guard.lost
    wait_for(lambda: losses)


# What must not end the renewals


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_any_error_of_a_store_is_retried(store, error):
    errors = [error]

    def wrong(real, leases):
        if errors:
            raise errors.pop()
        return real(leases)

    with patched(store, "renew", wrong), locks.lock("x", ttl=0.45) as guard:
        hold_steadily(guard, 0.6)
    assert not errors


@pytest.mark.parametrize("answer", [None, 5])
def test_nonsense_from_a_store_is_retried(store, answer):
    answers = [answer]
    with patched(store, "renew", lambda real, leases: answers.pop() if answers else real(leases)):
        with locks.lock("x", ttl=0.45) as guard:
            hold_steadily(guard, 0.6)


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(1)])
def test_error_in_on_lost_ends_neither_renewals_nor_other_announcements(error):
    def wrong(guard):
        raise error

    losses = Losses()
    with locks.lock("kept", ttl=0.45) as kept:
        guards = [locks.acquire(name, ttl=0.45, on_lost=call) for name, call in (("a", wrong), ("b", losses))]
        for guard in guards:
            locks.force_release(guard.name)
        wait_for(lambda: losses)
        hold_steadily(kept, 0.5)


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(1)])
def test_error_in_a_receiver_ends_neither_renewals_nor_on_lost(error):
    def wrong(**what):
        raise error

    losses = Losses()
    signals.lease_lost.connect(wrong)
    try:
        with locks.lock("kept", ttl=0.45) as kept:
            guard = locks.acquire("a", ttl=0.45, on_lost=losses)
            locks.force_release("a")
            wait_for(lambda: losses)
            hold_steadily(kept, 0.5)
    finally:
        signals.lease_lost.disconnect(wrong)
    assert guard.lost


def test_threads_that_cannot_be_started_are_started_later(monkeypatch):
    wait_for(lambda: not renewers())
    start = threading.Thread.start

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError):
        locks.acquire("x", ttl=1.2)
    assert locks.get("x") is None
    monkeypatch.setattr(threading.Thread, "start", start)
    with locks.lock("x", ttl=1.2) as guard:
        monkeypatch.setattr(threading.Thread, "start", refused)
        time.sleep(0.5)
        monkeypatch.setattr(threading.Thread, "start", start)
        hold_steadily(guard, 1.2)


def test_announcements_go_on_after_a_thread_could_not_be_started(monkeypatch):
    losses = Losses()
    announcer = renewal._Announcer()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no more")))
        with pytest.raises(RuntimeError):
            announcer.announce(lambda: losses("first"))
    announcer.announce(lambda: losses("second"))
    wait_for(lambda: len(losses) == 2)


# A hanging connection


def test_one_hanging_connection_costs_no_lease(store):
    with Hanging(store, which=lambda number: number == 1), locks.lock("x", ttl=0.9) as guard:
        hold_steadily(guard, 1)


def test_failure_of_a_hanging_call_is_nothing_once_another_has_renewed(store, caplog):
    def first_fails_late(real, leases, calls=itertools.count(1)):  # noqa: B008
        if next(calls) == 1:
            time.sleep(0.5)
            raise store.unavailable("renew", "", Fault("timed out"))
        return real(leases)

    with patched(store, "renew", first_fails_late), locks.lock("x", ttl=0.9) as guard:
        hold_steadily(guard, 1.2)
    assert "could not be renewed" not in caplog.text
    assert "trying another connection" in caplog.text


def test_two_hanging_connections_do_not_spin(store, monkeypatch):
    looks = itertools.count()
    look = renewal.keeper._look_at_all
    with locks.lock("other", ttl=60), Hanging(store):
        early = locks.acquire("early", ttl=0.45)
        wait_for(lambda: early.lost)  # by now its renewal hangs, and so does the second try
        late = locks.acquire("late", ttl=1.8)
        monkeypatch.setattr(renewal.keeper, "_look_at_all", lambda now: next(looks) < 0 or look(now))
        wait_for(lambda: late.lost)
    assert next(looks) < 50


def test_workers_that_hang_for_ever_are_replaced(store, monkeypatch):
    monkeypatch.setattr(renewal, "HOPELESS", 1.0)
    with locks.lock("other", ttl=60):  # so that the store always has a lease to care for
        with Hanging(store, which=lambda number: number <= 2):
            lost = locks.acquire("x", ttl=0.9)
            wait_for(lambda: lost.lost)
            wait_for(lambda: locks.get("x") is None)
            time.sleep(0.5)
            with locks.lock("x", ttl=0.9) as guard:
                hold_steadily(guard, 0.6)


def test_threads_go_on_after_a_hang(store):
    with Hanging(store) as hanging:
        lost = locks.acquire("x", ttl=0.45)
        wait_for(lambda: lost.lost)
        hanging.go.set()
        with locks.lock("x", ttl=0.45, wait=3) as guard:
            hold_steadily(guard, 0.6)


# Threads


def test_threads_end_when_idle_and_start_again():
    for _ in range(2):
        with locks.lock("x", ttl=0.3) as guard:
            hold_steadily(guard, 0.5)
            assert {thread.name for thread in renewers()} >= {"django_locks timer", "django_locks renewer default"}
        start = time.monotonic()
        assert wait_for(lambda: not renewers()) - start < 3


def test_release_does_not_wait_for_the_renewer():
    threads = threading.active_count()
    start = time.monotonic()
    for _ in range(100):
        with locks.lock("x", ttl=30):
            pass
    assert time.monotonic() - start < 2
    assert threading.active_count() <= threads + 2


def test_thousand_guards_are_kept_by_three_threads_at_most():
    threads = threading.active_count()
    guards = [locks.acquire(f"x{number}", ttl=3) for number in range(1000)]
    time.sleep(2.2)
    assert threading.active_count() <= threads + 3
    assert not any(guard.lost for guard in guards)
    assert all(guard.release() for guard in guards)


def test_guards_taken_and_released_by_many_threads_are_all_kept():
    failures = []

    def work(number):
        chance = random.Random(number)
        for turn in range(25):
            try:
                with locks.lock(f"x{number}-{turn}", ttl=0.9):
                    time.sleep(chance.choice([0, 0.001, 0.05]))
            except BaseException as error:
                failures.append(error)

    with locks.lock("long", ttl=0.9) as guard:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        guard.check()
    assert failures == []


# Fork


def in_child(work: Callable[[], object], seconds: float = 15.0) -> bool:
    """Return whether the work of a forked child was true; a child that hangs is a failure."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(2)
    deadline = time.monotonic() + seconds
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)
    return done[1] == 0


def renews_in_child():
    with locks.lock("child", ttl=0.4) as guard:
        hold_steadily(guard, 0.6)
    return locks.get("child") is None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_is_inert_and_has_renewals_of_its_own():
    losses = Losses()
    with locks.lock("x", ttl=0.45, on_lost=losses) as guard:

        def child():
            with pytest.raises(LeaseLost, match="fork"):
                guard.check()
            return guard.lost and guard.release() is False and renews_in_child() and not losses

        assert in_child(child)
        hold_steadily(guard, 0.6)
    assert losses == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_body_that_goes_on_in_a_forked_child_ends_in_a_loss():
    def child():
        guard.__exit__(None, None, None)

    with locks.lock("x") as guard:

        def ends_in_loss():
            with pytest.raises(LeaseLost, match="fork"):
                child()
            return True

        assert in_child(ends_in_loss)
        guard.check()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forks_at_random_moments_leave_no_child_that_hangs(store):
    chance = random.Random(1)
    stop = threading.Event()

    def churn(number):
        while not stop.is_set():
            with locks.lock(f"churn{number}", ttl=0.6):
                time.sleep(0.001)

    def child():
        with locks.lock("child", ttl=0.6) as guard:
            hold_steadily(guard, 0.3)
        return True

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(2)]
    with locks.lock("x", ttl=0.6) as guard:
        for thread in threads:
            thread.start()
        for _ in range(20 if LONG else 8):
            time.sleep(chance.random() * 0.02)
            assert in_child(child, 5)
            guard.check()
        stop.set()
        for thread in threads:
            thread.join()


# Waiting for what is kept


def test_others_are_refused_as_long_as_it_is_renewed():
    refusals = []

    def contend():
        end = time.monotonic() + 0.9
        while time.monotonic() < end:
            try:
                locks.acquire("x").release()
            except LockNotAcquired:
                refusals.append(1)
            time.sleep(0.02)

    with locks.lock("x", ttl=0.4):
        thread = threading.Thread(target=contend)
        thread.start()
        thread.join()
    assert len(refusals) > 20
