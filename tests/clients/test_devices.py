"""Devices by hand: who is asked, when each answers, who counts, and how long a round lasts."""

import numpy as np
import pytest

from hpcfl.clients.devices import Devices, Lognormal, Participants, Visits
from hpcfl.clients.sampling import Bernoulli, Cyclic, Replay, Uniform
from hpcfl.errors import DataError, JobError

# 1 MB down, 0.5 MB up, four steps of ten examples.
VISITS = Visits(
    down=1_000_000,
    up=500_000,
    steps=np.array([4, 4, 4]),
    examples=np.array([40, 40, 40]),
    examples_in=lambda client, steps: 10 * steps,
)
ALL = Replay(rounds=((0, 1, 2),) * 9)
# At 8 megabits a second down and 4 up the messages take 1 s each.
SLOW = {"down_mbps": 8.0, "up_mbps": 4.0}
SPEEDS = "client,examples_per_s\n0,10\n1,20\n2,5\n"  # 6 s, 4 s and 10 s in all


def many(clients, steps=1):
    full = np.full(clients, 10 * steps)
    return VISITS._replace(steps=full // 10, examples=full)


@pytest.fixture
def played(tmp_path):
    """Members, shortened steps, clients asked and seconds of a round of devices by a trace."""

    def run(text=SPEEDS, *, cohort=ALL, round=0, visits=VISITS, **keys):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        devices = Devices(**SLOW, path=str(path), **keys)
        members, steps, wait = Participants(cohort, devices, 3, 7, visits)(round)
        return members.tolist(), dict(steps), *wait

    return run


def test_without_devices_all_members_take_part_and_no_time_passes():
    members, steps, wait = Participants(ALL, None, 3, 7, VISITS)(0)
    assert (members.tolist(), dict(steps), wait) == ([0, 1, 2], {}, None)


def test_a_round_lasts_as_long_as_its_slowest_client(played):
    assert played() == ([0, 1, 2], {}, 3, 10.0)
    assert played(cohort=Replay(rounds=((0, 1),))) == ([0, 1], {}, 2, 6.0)


@pytest.mark.parametrize(
    ("deadline", "members", "lasts"),
    [(11.0, [0, 1, 2], 10.0), (10.0, [0, 1, 2], 10.0), (9.0, [0, 1], 9.0), (4.0, [1], 4.0),
     (3.5, [], 3.5)],
)  # fmt: skip
def test_a_deadline_drops_the_late_and_is_waited_for(played, deadline, members, lasts):
    assert played(deadline_s=deadline) == (members, {}, 3, lasts)


def test_an_answer_at_the_deadline_counts(played):
    """In binary 2.05 s are a little less than 2 050 000 microseconds."""
    assert 2.05 * 1e6 < 2_050_000
    quick = "client,examples_per_s\n0,800\n1,800\n2,799\n"
    assert played(quick, deadline_s=2.05) == ([0, 1], {}, 3, 2.05)


def test_late_clients_take_the_steps_that_fit(played):
    """Of 5 s, 3 s are left for steps of 1 s, 0.5 s and 2 s; client 2 is done after 4 s."""
    assert played(deadline_s=5.0, late="shorten") == ([0, 1, 2], {0: 3, 2: 1}, 3, 5.0)
    assert played(deadline_s=3.75, late="shorten") == ([0, 1], {0: 1, 1: 3}, 3, 3.75)
    assert played(deadline_s=2.25, late="shorten") == ([], {}, 3, 2.25)


def test_over_selection_closes_the_round_with_the_answer_of_the_last_one_wanted(played):
    two = Uniform(size=2)
    assert played(cohort=two, over_select=1.5) == ([0, 1], {}, 3, 6.0)
    assert played(cohort=two, over_select=1.5, deadline_s=5.0) == ([1], {}, 3, 5.0)
    one = Uniform(size=1)
    assert played(cohort=one, over_select=3.0, deadline_s=5.0) == ([1], {}, 3, 4.0)


def test_a_failure_is_noticed_when_the_answer_would_have_come(played):
    failing = "client,examples_per_s,fails\n0,10,0\n1,20,0\n2,5,1\n"
    assert played(failing) == ([0, 1], {}, 3, 10.0)
    assert played(failing, deadline_s=7.0) == ([0, 1], {}, 3, 7.0)
    assert played(failing, cohort=Uniform(size=2), over_select=1.5) == ([0, 1], {}, 3, 6.0)
    nobody = "client,examples_per_s,fails\n0,10,1\n1,20,1\n2,5,1\n"
    assert played(nobody) == ([], {}, 3, 10.0)


def test_who_is_not_available_is_not_asked(played):
    away = "client,examples_per_s,available\n0,10,1\n1,20,1\n2,5,0\n"
    assert played(away) == ([0, 1], {}, 2, 6.0)
    assert played(away, cohort=Uniform(size=3)) == ([0, 1], {}, 2, 6.0)
    assert played(away, cohort=Cyclic(size=1), round=2) == ([], {}, 0, 0.0)
    assert played(away, cohort=Cyclic(size=1), round=2, deadline_s=8.0) == ([], {}, 0, 8.0)


def test_a_row_of_a_trace_holds_until_the_next_one(played):
    changing = "round,client,examples_per_s\n1,0,10\n1,1,20\n1,2,5\n3,2,40\n5,2,20\n"
    assert [played(changing, round=t)[-1] for t in range(6)] == [10.0, 10.0, 6.0, 6.0, 6.0, 6.0]
    alone = Replay(rounds=((2,),) * 9)
    lasts = [played(changing, round=t, cohort=alone)[-1] for t in range(6)]
    assert lasts == [10.0, 10.0, 3.0, 3.0, 4.0, 4.0]


def test_asked_are_as_many_as_the_factor_says():
    for factor, size, asked in ((1.1, 10, 11), (1.3, 10, 13), (1.25, 10, 13), (1.0, 7, 7)):
        assert Devices(over_select=factor).asking(Uniform(size=size)).size == asked


def test_nobody_late_is_as_without_devices():
    for cohort in (Uniform(size=5), Bernoulli(p=0.3), Cyclic(size=5)):
        plain = Participants(cohort, None, 40, 3, many(40))
        ideal = Participants(cohort, Devices(examples_per_s=5.0, jitter=0.3), 40, 3, many(40))
        for t in range(20):
            assert ideal(t).members.tolist() == plain(t).members.tolist()


def test_a_round_does_not_depend_on_the_rounds_before_it():
    keys = {"available": 0.6, "fails": 0.1, "jitter": 0.5, "deadline_s": 3.0, "late": "shorten"}
    speed = Lognormal(median=20.0, sigma=1.0)
    devices = Devices(examples_per_s=speed, over_select=1.3, **keys)
    visits = many(50, 9)
    there = Participants(Uniform(size=10), devices, 50, 5, visits)
    forth = [there(t) for t in range(30)]
    assert sum(len(found.steps) for found in forth) > 10
    back = Participants(Uniform(size=10), devices, 50, 5, visits)
    for t in reversed(range(30)):
        found = back(t)
        assert found.members.tolist() == forth[t].members.tolist()
        assert (found.steps, found.wait) == (forth[t].steps, forth[t].wait)


def test_shares_are_those_of_the_probabilities():
    """4000 rounds of 30 clients; three standard deviations of their means."""
    devices = Devices(available=0.7, fails=0.2)
    found = Participants(Bernoulli(p=0.5), devices, 30, 2, many(30))
    played = [found(t) for t in range(4000)]
    counts = np.bincount(np.concatenate([each.members for each in played]), minlength=30)
    for share, chance in (
        (np.mean([each.wait.asked for each in played]) / 30, 0.35),
        (np.mean([len(each.members) for each in played]) / 30, 0.28),
    ):
        assert abs(share - chance) < 3 * np.sqrt(chance * (1 - chance) / 120_000)
    assert np.abs(counts / 4000 - 0.28).max() < 4 * np.sqrt(0.28 * 0.72 / 4000)


def test_speeds_and_jitter_are_lognormal():
    alone = Replay(rounds=tuple((i,) for i in range(2000)))
    devices = Devices(examples_per_s=Lognormal(median=10.0, sigma=0.8))
    found = Participants(alone, devices, 2000, 1, many(2000))
    drawn = np.log([found(t).wait.seconds for t in range(2000)])
    assert abs(drawn.mean()) < 3 * 0.8 / np.sqrt(2000)
    assert abs(drawn.std() - 0.8) < 0.05
    same = Participants(Replay(rounds=((0,),) * 2000), Devices(examples_per_s=10.0, jitter=0.3),
                        1, 1, many(1))  # fmt: skip
    drawn = np.log([same(t).wait.seconds for t in range(2000)])
    assert abs(drawn.mean()) < 3 * 0.3 / np.sqrt(2000)
    assert abs(drawn.std() - 0.3) < 0.02


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,examples_per_s\n0,1\n1,1\n", "has no row for client 2, expected one of each of"),
        ("client,examples_per_s\n0,1\n1,1\n2,0\n", ":4: examples_per_s is '0', expected a number"),
        ("client,examples_per_s\n0,1\n1,-1\n2,1\n", ":3: examples_per_s is '-1', expected a num"),
        ("client,examples_per_s\n0,1\n1,nan\n2,1\n", ":3: examples_per_s is 'nan', expected a n"),
        ("client,fails\n0,1\n1,1.5\n2,0\n", ":3: fails is '1.5', expected a probability"),
        ("client,examples_per_s\n0,1\n1,1\n3,1\n", ":4: client is '3', expected 0 to 2"),
        ("client,examples_per_s\n0,1\n1,1\n1,2\n2,1\n", ":4: client 1 has two rows, expected one"),
        ("client,speed\n0,1\n", "column 'speed' is unknown, expected some of client, round, exam"),
        ("client,fails,fails\n0,1,1\n", "column 'fails' is there twice"),
        ("round,fails\n1,1\n", "its header is 'round,fails', expected client and one of"),
        ("client,round,fails\n0,1,0\n1,1,0\n2,2,0\n", "no row for client 2, expected one of each"),
        ("client,round,fails\n0,0,0\n", ":2: round is '0', expected a whole number from 1 on"),
        ("", "its header is '', expected client"),
    ],
)
def test_a_wrong_trace_is_one_line(played, text, said):
    with pytest.raises(DataError) as e:
        played(text)
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_a_column_and_its_key_exclude_each_other(played):
    with pytest.raises(JobError, match=r"devices.down_mbps: is a column of .*trace.csv too"):
        played("client,down_mbps\n0,1\n1,1\n2,1\n")


def test_wrong_keys_are_refused():
    with pytest.raises(ValueError, match="late: found shorten without deadline_s"):
        Devices(late="shorten")
    with pytest.raises(ValueError, match=r"over_select: found 1.5 with cohort.kind bernoulli"):
        Devices(over_select=1.5).asking(Bernoulli(p=0.5))
    with pytest.raises(JobError, match=r"asks 15 clients of 12; use at most 1.2"):
        Devices(over_select=1.5).check(Uniform(size=10), 12)
