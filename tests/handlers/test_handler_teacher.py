# SPDX-License-Identifier: Apache-2.0
"""The mean teacher against the formula by hand, and after a restart."""

import pytest
import torch
from ignite.engine import Events

from vmfseg.handlers import EMATeacher
from vmfseg.networks import VMFNet


def test_the_average_is_plain_first_and_exponential_later(line, trainer):
    net = line()
    teacher, seen = EMATeacher([net], decay=0.7), []
    engine = trainer(net, epochs=3)
    teacher.attach(engine)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda _: seen.append(float(net.weight)))
    engine.run()
    expected = 0.0
    for t, value in enumerate(seen):
        keep = min(1 - 1 / (t + 1), 0.7)
        expected = keep * expected + (1 - keep) * value
    assert len(seen) == teacher.steps == 9
    assert len(set(seen)) == 9
    assert float(teacher.teachers[0].weight) == pytest.approx(expected, rel=1e-6)


def test_it_follows_optimizer_steps_not_batches(line, trainer, images):
    net = line()
    teacher = EMATeacher([net])
    engine = trainer(net, data=images(4), epochs=2, accumulation_steps=2)
    teacher.attach(engine)
    engine.run()
    assert teacher.steps == 4


def test_a_restored_teacher_goes_on_bit_for_bit():
    torch.manual_seed(0)
    net = VMFNet(channels=(4, 8), num_kernels=3, hidden_channels=4, seed=0)
    whole, begun = EMATeacher([net]), EMATeacher([net])
    states = []
    for _ in range(4):
        net(torch.rand(2, 1, 8, 8))  # moves the running statistics
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter))
        states.append({k: v.clone() for k, v in net.state_dict().items()})
    for number, state in enumerate(states):
        net.load_state_dict(state)
        whole.update()
        if number < 2:
            begun.update()
    resumed = EMATeacher([net])
    resumed.load_state_dict(begun.state_dict())
    for state in states[2:]:
        net.load_state_dict(state)
        resumed.update()
    a, b = whole.teachers[0].state_dict(), resumed.teachers[0].state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any(name.startswith("composer") for name in a)  # no logit depends on it
    assert not torch.equal(a["encoder.downs.0.1.running_mean"], states[-1]["encoder.downs.0.1.running_mean"])


def test_it_predicts_the_mean_probability_in_eval_mode_and_leaves_the_students_alone():
    nets = [VMFNet(channels=(4, 8), num_kernels=3, hidden_channels=4, seed=seed) for seed in (0, 1)]
    teacher, x = EMATeacher(nets), torch.rand(2, 1, 8, 8)
    before = [{k: v.clone() for k, v in net.state_dict().items()} for net in nets]
    chance, parts = teacher.predict(x)
    expected = torch.stack([net.eval()(x).softmax(dim=1) for net in nets]).mean(dim=0)
    torch.testing.assert_close(chance, expected)
    assert [p.activations.shape for p in parts] == [(2, 3, 4, 4)] * 2
    assert all(torch.equal(b[k], net.state_dict()[k]) for b, net in zip(before, nets, strict=True) for k in b)
    with pytest.raises(ValueError, match="decay must be"):
        EMATeacher(nets, decay=1.0)
