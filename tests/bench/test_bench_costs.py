"""The costs of a round's parts, by a clock that only the watched part moves."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from hpcfl.bench import costs
from hpcfl.bench.timed_rounds import build_bench_run
from hpcfl.job.schema import load

READ_S, MODEL_S = 3.0, 2.0  # of an example


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(("size", "batches"), [(2, costs.BATCHES), (5, 2), (12, 1), (40, 1)])
def test_a_test_has_the_time_in_which_its_batch_is_made(
    job, tmp_path, monkeypatch, determinism, size, batches
):
    """Of 12 examples; the first batch warms up if there is another."""
    clock = Clock()
    monkeypatch.setattr(costs, "perf_counter", clock)
    with ExitStack() as stack:
        loaded = load(job, [f"evaluate.batch_size={size}"])
        side = build_bench_run(loaded, tmp_path, stack)
        dataset, gradient = side.components.dataset, side.components.gradient()
        transform, predict = dataset.transform, gradient.predict

        def slow_transform(inputs, *rest):
            clock.pass_by(READ_S * len(inputs))
            return transform(inputs, *rest)

        def slow_predict(x, inputs):
            clock.pass_by(MODEL_S * len(inputs))
            return predict(x, inputs)

        monkeypatch.setattr(gradient, "predict", slow_predict)
        components = replace(side.components, dataset=replace(dataset, transform=slow_transform))
        monkeypatch.setattr(type(components), "gradient", lambda self: gradient)
        found = costs._tests(side._replace(components=components))
    assert found.values == pytest.approx([READ_S + MODEL_S] * batches)
