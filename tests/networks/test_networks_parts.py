# SPDX-License-Identifier: Apache-2.0
"""network_parts: any network from images to logits, asked for what it can say beside them."""

from typing import NamedTuple

import pytest
import torch
from monai.inferers import SimpleInferer
from monai.networks.nets import BasicUNet, DynUNet, UNet

from vmfseg.networks import VMFNet, VMFParts, network_parts
from vmfseg.networks.parts import bare_network

PLAIN = {
    "UNet": lambda: UNet(2, 1, 4, (4, 8), (2,)),
    "BasicUNet": lambda: BasicUNet(2, 1, 4, features=(4, 4, 8, 8, 8, 4)),
    "DynUNet": lambda: DynUNet(2, 1, 4, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 8]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_network_of_monai_gives_logits_and_no_other_part(name):
    net, image = PLAIN[name]().eval(), torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        parts = network_parts(net, image)
        assert torch.equal(parts.logits, net(image))
    assert parts._asdict().keys() - {"logits"} == {key for key, value in parts._asdict().items() if value is None}


@pytest.mark.parametrize(
    ("kwargs", "absent"),
    [
        pytest.param({}, {"presence"}, id="vmfnet"),
        pytest.param({"reconstruct": False}, {"presence", "reconstruction"}, id="no composer"),
        pytest.param({"presence": "masks", "presence_channels": 2}, set(), id="presence"),
    ],
)
def test_our_network_gives_the_parts_that_it_has(kwargs, absent):
    net = VMFNet(channels=(4, 8, 8), num_kernels=4, hidden_channels=4, **kwargs).eval()
    image = torch.rand(2, 1, 64, 64)  # a presence head needs 64 pixels
    with torch.no_grad():
        parts, logits = network_parts(net, image), net(image)
        inferred = network_parts(net, image, SimpleInferer())
    assert {name for name, value in parts._asdict().items() if value is None} == absent
    assert torch.equal(parts.logits, logits)
    for one, other in zip(parts, inferred, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    torch.testing.assert_close(parts.activations.sum(dim=1), torch.ones(2, 32, 32))


class Other(NamedTuple):
    logits: torch.Tensor
    style: torch.Tensor


class Wrapped(torch.nn.Module):
    """As DDP wraps a network: called with anything, the network below ``module``."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class Styled(torch.nn.Module):
    def forward(self, x, return_parts=False):
        return Other(x, x.mean((2, 3))) if return_parts else x


def test_parts_of_another_kind_and_wrapped_networks_are_understood():
    image = torch.rand(2, 3, 8, 8)
    net = Wrapped(Styled())
    assert bare_network(net) is net.module
    assert bare_network(net.module) is net.module
    assert network_parts(net, image).style.shape == (2, 3)


class Returns(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        pytest.param([torch.zeros(2, 4, 8, 8)] * 2, "got list of Returns", id="deep supervision"),
        pytest.param(torch.zeros(2, 4, 4, 4), r"got \(2, 4, 4, 4\) of Returns", id="another size"),
        pytest.param(torch.zeros(2, 4, 8), r"got \(2, 4, 8\)", id="another rank"),
        pytest.param(VMFParts(torch.zeros(2, 4, 16, 16)), r"got \(2, 4, 16, 16\)", id="parts of another size"),
    ],
)
def test_what_is_no_logits_is_refused(value, found):
    with pytest.raises(ValueError, match=rf"network must return logits BN with the images' size \(8, 8\), {found}"):
        network_parts(Returns(value), torch.zeros(2, 1, 8, 8))
