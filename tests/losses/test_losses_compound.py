# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from vmfseg.losses import CrossPseudoLoss, MaskedDiceLoss, PresenceLoss, VMFClusteringLoss, VMFLoss
from vmfseg.networks import VMFParts


def parts(batch=2, **changes):
    made = VMFParts(
        logits=torch.randn(batch, 4, 8, 8),
        features=torch.rand(batch, 5, 4, 4),
        activations=torch.rand(batch, 3, 4, 4),
        kernels=torch.rand(3, 5),
        reconstruction=torch.rand(batch, 1, 8, 8),
        presence=torch.randn(batch, 3),
    )
    return made._replace(**changes)


IMAGE, LABEL, PRESENCE = torch.rand(2, 1, 8, 8), torch.ones(2, 1, 8, 8), torch.ones(2, 3)


def batch(image, label=None, presence=None, annotated=None):
    given = {"image": image, "label": label, "presence": presence, "annotated": annotated}
    return {key: value for key, value in given.items() if value is not None}


def test_only_named_terms_are_computed_and_a_weight_of_zero_switches_off():
    terms = VMFLoss({"dice": 2.0, "clustering": 0.0})(parts(), batch(IMAGE, LABEL))
    assert set(terms) == {"dice"}


def test_an_unlabelled_batch_may_have_other_weights():
    loss = VMFLoss("vmfnet", unlabeled_weights={"reconstruction": 0.1})
    given = parts()
    labelled, unlabelled = loss(given, batch(IMAGE, LABEL)), loss(given, batch(IMAGE))
    torch.testing.assert_close(unlabelled["reconstruction"], 0.1 * labelled["reconstruction"])
    torch.testing.assert_close(unlabelled["clustering"], labelled["clustering"])
    assert "dice" not in unlabelled


def test_a_ramp_scales_its_term_and_only_that():
    given, plain = parts(), VMFLoss("vmfnet")
    loss = VMFLoss("vmfnet", ramps={"reconstruction": [0.2, 0.6]})
    whole = plain(given, batch(IMAGE, LABEL))
    for progress, factor in ((0.0, 0.0), (0.2, 0.0), (0.3, 0.25), (0.6, 1.0), (1.0, 1.0)):
        loss.progress = progress
        terms = loss(given, batch(IMAGE, LABEL))
        assert set(terms) == set(whole)
        torch.testing.assert_close(terms["reconstruction"], factor * whole["reconstruction"])
        torch.testing.assert_close(terms["dice"], whole["dice"])


@pytest.mark.parametrize(
    ("ramps", "message"),
    [
        pytest.param({"reconstructoin": [0, 1]}, "Did you mean .reconstruction", id="term"),
        pytest.param({"reconstruction": [0.5, 0.5]}, r"two fractions .* got \[0.5, 0.5\]", id="empty"),
        pytest.param({"reconstruction": [0, 2]}, "two fractions of the training", id="percent"),
        pytest.param({"reconstruction": [0.5]}, "two fractions of the training", id="one number"),
    ],
)
def test_bad_ramps_are_refused(ramps, message):
    with pytest.raises(ValueError, match=message):
        VMFLoss("vmfnet", ramps=ramps)


def test_a_shorter_label_belongs_to_the_first_images():
    given = parts(batch=4)
    image, label = torch.rand(4, 1, 8, 8), torch.randint(4, (2, 1, 8, 8))
    terms = VMFLoss({"dice": 1.0, "cross_entropy": 1.0, "reconstruction": 1.0})(
        given._replace(reconstruction=image + 1), batch(image, label)
    )
    torch.testing.assert_close(terms["dice"], MaskedDiceLoss()(given.logits[:2], label))
    assert terms["reconstruction"].item() == pytest.approx(1.0, abs=1e-6)


def test_presence_labels_may_belong_to_the_first_images_only():
    given, truth = parts(batch=4), torch.tensor([[1, 0, 1], [0, 0, 0]])
    terms = VMFLoss({"presence": 1.0})(given, batch(torch.rand(4, 1, 8, 8), None, truth))
    torch.testing.assert_close(terms["presence"], (given.presence[:2] - truth).abs().mean())


def test_presence_of_anything_is_one_number_an_image():
    given, truth = parts(presence=torch.randn(2, 1)), torch.tensor([[0, 0, 1], [0, 0, 0]])
    terms = VMFLoss("weak", presence_any=True)(given, batch(IMAGE, None, truth))
    torch.testing.assert_close(terms["presence"], (given.presence - torch.tensor([[1.0], [0.0]])).abs().mean())


def test_flags_reach_dice_and_cross_entropy():
    logits = torch.randn(2, 4, 8, 8)
    annotated = torch.tensor([[True, True, False, True]] * 2)
    for term in ("dice", "cross_entropy"):
        with_flags, without = (
            VMFLoss({term: 1.0})(parts(logits=logits), batch(IMAGE, LABEL, annotated=flags))[term]
            for flags in (annotated, None)
        )
        assert with_flags != without or term == "cross_entropy"  # a label without zeros has nothing to pool
    zeros = torch.zeros_like(LABEL)
    pooled, plain = (
        VMFLoss({"cross_entropy": 1.0})(parts(logits=logits), batch(IMAGE, zeros, annotated=flags))["cross_entropy"]
        for flags in (annotated, None)
    )
    assert pooled < plain


def test_choices_of_the_reference_code_are_options():
    given = parts()
    loss = VMFLoss(
        {"dice": 1.0, "cross_entropy": 1.0, "clustering": 1.0},
        squared_pred=False,
        cross_entropy_on="probabilities",
        clustering_reduction="sum",
    )
    terms = loss(given._replace(logits=torch.zeros(2, 4, 8, 8)), batch(IMAGE, LABEL))
    assert terms["cross_entropy"].item() == pytest.approx(1.3863, abs=5e-5)
    torch.testing.assert_close(
        terms["clustering"], VMFClusteringLoss("sum", one_minus=True)(given.features, given.kernels)
    )
    torch.testing.assert_close(terms["dice"], MaskedDiceLoss(squared_pred=False)(torch.zeros(2, 4, 8, 8), LABEL))
    assert VMFLoss(presence_kind="bce").presence.kind == "bce"
    assert VMFLoss(pseudo_target="argmax").cross_pseudo.target == "argmax"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"weights": {"dcie": 1.0}}, r"weights must name terms of dice, .* got 'dcie'\. Did you mean 'dice'\?"),
        ({"weights": "vmfnett"}, r"weights must be a mapping or one of unsupervised, .* got 'vmfnett'\. Did you mean"),
        (
            {"weights": {"dice": -1.0}},
            r"weights\['dice'\] must be a finite number of at least 0, got -1\.0\. 0 switches",
        ),
        ({"weights": {"dice": float("nan")}}, r"weights\['dice'\] must be a finite number of at least 0, got nan"),
        ({"unlabeled_weights": {"recon": 1.0}}, r"unlabeled_weights must name terms of .* got 'recon'\. Did you mean"),
        ({"clustering_reduction": "avg"}, r"reduction must be one of mean, sum, none, got 'avg'"),
        ({"presence_kind": "l2"}, r"kind must be one of l1, bce, balanced, got 'l2'"),
        ({"pseudo_target": "soft"}, r"target must be one of threshold, argmax, got 'soft'"),
        ({"cross_entropy_on": "masks"}, r"on must be one of logits, probabilities, got 'masks'"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        VMFLoss(**kwargs)


@pytest.mark.parametrize(
    ("setting", "given", "image", "label", "presence", "message"),
    [
        ("vmfnet", {"reconstruction": None}, IMAGE, None, None, "network without reconstruction, got 1.0. Use VMFNet"),
        ("weak", {"presence": None}, IMAGE, None, PRESENCE, "network without presence, got 1.0. Use VMFNet"),
        (
            "weak",
            {},
            IMAGE,
            None,
            PRESENCE[:, :1],
            r"presence must have the shape of the prediction \(2, 3\), got \(2, 1",
        ),
        (
            "vmfnet",
            {},
            IMAGE[:, :, :1],
            None,
            None,
            r"image must have the shape of the reconstruction .* got \(2, 1, 1, 8",
        ),
        (
            "vmfnet",
            {},
            IMAGE,
            LABEL.repeat(2, 1, 1, 1),
            None,
            r"label must not have more images than the batch, got 4 for",
        ),
        ("vmfnet", {}, IMAGE, LABEL * 7, None, r"label must hold class numbers from 0 to 3, got values from 7 to 7"),
    ],
    ids=["no-composer", "no-presence-head", "presence-shape", "image-shape", "too-many-labels", "unknown-class"],
)
def test_what_does_not_fit_is_refused(setting, given, image, label, presence, message):
    with pytest.raises(ValueError, match=message):
        VMFLoss(setting)(parts(**given), batch(image, label, presence))


@pytest.mark.parametrize("part", ["kernels", "reconstruction", "presence"])
def test_every_term_names_the_part_that_it_needs_even_where_only_unlabelled_batches_have_it(part):
    term = {"kernels": "clustering"}.get(part, part)
    loss = VMFLoss({"dice": 1.0}, unlabeled_weights={term: 0.5})
    lacking = VMFParts(torch.randn(2, 4, 8, 8))  # of any network that gives logits alone
    with pytest.raises(ValueError, match=rf"weights\['{term}'\] must be 0 for a network without {part}, got 0\.5"):
        loss(lacking, batch(IMAGE, LABEL))
    assert set(VMFLoss({"dice": 1.0, "cross_entropy": 1.0})(lacking, batch(IMAGE, LABEL))) == {"dice", "cross_entropy"}
    assert VMFLoss({"dice": 1.0, term: 0.0})(lacking, batch(IMAGE, LABEL)).keys() == {"dice"}


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 4, 8, 8), (2, 4, 8, 4)])
def test_a_partner_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"teacher must have the shape of the student \(2, 4, 8, 8\), got .* Use two"):
        CrossPseudoLoss()(torch.zeros(2, 4, 8, 8), torch.zeros(shape))


def test_an_argmax_teacher_teaches_the_winner_only():
    teacher = torch.tensor([-1.0, -3.0, -2.0]).view(1, 3, 1, 1)  # no channel above one half
    student = torch.tensor([9.0, -9.0, -9.0]).view(1, 3, 1, 1)
    assert CrossPseudoLoss("argmax")(student, teacher) < 1e-3
    assert CrossPseudoLoss("threshold")(student, teacher) > 0.5


@pytest.mark.parametrize(
    ("features", "kernels", "message"),
    [
        ((1, 4, 3, 3), (2, 5), r"features must have shape \(B, 5, H, W\), got \(1, 4, 3, 3\)\. Check"),
        ((1, 5, 3, 3), (2, 5, 1, 1), r"kernels must have shape \(J, F\), got \(2, 5, 1, 1\)\. Pass unit_kernels"),
    ],
)
def test_clustering_refuses_what_does_not_fit(features, kernels, message):
    with pytest.raises(ValueError, match=message):
        VMFClusteringLoss()(torch.rand(features), torch.rand(kernels))


def test_bad_words_are_named():
    with pytest.raises(ValueError, match=r"reduction must be one of mean, sum, none, got 'maen'\. Did you mean 'mean'"):
        VMFClusteringLoss("maen")
    with pytest.raises(ValueError, match=r"kind must be one of l1, bce, balanced, got 'bec'\. Did you mean 'bce'"):
        PresenceLoss("bec")


@pytest.mark.parametrize("kind", ["l1", "bce", "balanced"])
def test_a_structure_that_nobody_looked_for_does_not_count(kind):
    annotated = torch.tensor([[True, True, False, True], [True, True, True, True]])
    truth = torch.tensor([[True, False, True], [False, True, True]])
    given = parts()
    loss = VMFLoss({"presence": 1.0}, presence_kind=kind)
    found = loss(given, batch(IMAGE, None, truth, annotated))["presence"]
    chosen = [(b, k) for b in range(2) for k in range(3) if annotated[b, k + 1]]
    alone = torch.stack([given.presence[b, k] for b, k in chosen])[None]
    expected = PresenceLoss(kind)(alone, torch.stack([truth[b, k] for b, k in chosen])[None])
    torch.testing.assert_close(found, expected)
    nothing = torch.tensor([[True, False, False, False]] * 2)
    assert float(loss(given, batch(IMAGE, None, truth, nothing))["presence"]) == 0.0


def test_something_that_was_seen_is_there_whatever_was_not_looked_for():
    annotated = torch.tensor([[True, True, False, True], [True, True, False, True]])
    truth = torch.tensor([[True, False, False], [False, False, False]])  # the second may show class 2
    given = parts(presence=torch.tensor([[0.25], [0.5]]))
    loss = VMFLoss({"presence": 1.0}, presence_any=True)
    assert float(loss(given, batch(IMAGE, None, truth, annotated))["presence"]) == 0.75


def test_balanced_presence_weighs_both_sides_alike_whatever_the_base_rate():
    logits, truth = torch.randn(10, 1, generator=torch.Generator().manual_seed(0)), torch.ones(10, 1)
    truth[0] = 0
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    loss = PresenceLoss("balanced")
    assert float(loss(logits, truth)) == pytest.approx(float((each[0] + each[1:].mean()) / 2))
    always = torch.full((10, 1), 9.0)  # optimal for L1, where nine of ten are present
    assert float(loss(always, truth)) > 4 > float(loss(torch.zeros(10, 1), truth))
    assert float(loss(logits[1:], truth[1:])) == pytest.approx(float(each[1:].mean()))
