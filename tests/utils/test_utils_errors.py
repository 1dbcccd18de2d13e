# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest
from monai.data import DataLoader, Dataset
from torch.utils.data import DataLoader as TorchLoader

from vmfseg.utils import VmfError
from vmfseg.utils.errors import EXIT_CODES, find_vmf_error

FIELDS = {"subject": "a b.nii.gz", "rule": "the file is cut off", "found": "12 of 40 bytes", "fix": "copy it again"}
COMBINATIONS = [
    {},
    {"rule": "r"},
    {"subject": "s"},
    {"rule": "r", "fix": "f"},
    {"subject": "s", "rule": "r", "found": "x"},
    FIELDS,
    {"subject": "über/größe 心.nii", "rule": "κ must be > 0: 100 %", "found": "{} \\n 'quoted' \"", "fix": "é"},
]


def fields(error):
    return error.as_dict()


@pytest.mark.parametrize("given", COMBINATIONS, ids=lambda d: "-".join(d) or "code-only")
@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, lambda e: VmfError(str(e))])
def test_a_copy_by_pickle_or_by_text_has_the_same_fields(given, again):
    error = VmfError("VMF213", **given)
    other = again(error)
    assert type(other) is VmfError
    assert fields(other) == fields(error)
    assert str(other) == str(error)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("VMF101", 2), ("VMF213", 3), ("VMF301", 4), ("VMF400", 5), ("VMF503", 6), ("VMF901", 7), ("VMF777", 7)],
)
def test_the_first_digit_decides_the_exit_code(code, exit_code):
    assert VmfError(code, rule="r").exit_code == exit_code
    assert set(EXIT_CODES.values()) == {2, 3, 4, 5, 6, 7}


def test_at_most_five_lines_whatever_the_fields_hold():
    error = VmfError("VMF213", **dict.fromkeys(FIELDS, "two\nlines\tand  spaces"))
    assert len(str(error).splitlines()) == 4
    assert error.found == "two lines and spaces"
    assert isinstance(error, ValueError)


def test_nothing_reaches_a_terminal_but_printable_text_of_bounded_length():
    error = VmfError("VMF213", subject="a\x1b]0;owned\x07\u202e\udcff.nii", found="x" * 5000, fix="é 心 \x9b31m")
    text = str(error)
    assert text.replace("\n", "").isprintable()
    assert error.subject == "a\\x1b]0;owned\\x07\\u202e\\udcff.nii"
    assert error.fix == "é 心 \\x9b31m"
    assert max(map(len, text.splitlines())) < 700
    text.encode("utf-8")


class Failing:
    """A data set whose items cannot be read."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise VmfError("VMF213", **FIELDS)


def failing_transform(data):
    raise VmfError("VMF213", **FIELDS)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_refusal_in_a_worker_process_arrives_whole(workers):
    with pytest.raises(VmfError) as caught:
        list(TorchLoader(Failing(), num_workers=workers))
    assert fields(caught.value) == {"code": "VMF213", **FIELDS}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_refusal_that_monai_wrapped_is_found(workers):
    loader = DataLoader(Dataset([{"image": 0}, {"image": 1}], failing_transform), num_workers=workers)
    with pytest.raises(RuntimeError, match="applying transform") as caught:
        list(loader)
    found = find_vmf_error(caught.value)
    assert fields(found) == {"code": "VMF213", **FIELDS}


def raised(build):
    try:
        build()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def by_cause():
    try:
        raise VmfError("VMF213", **FIELDS)
    except VmfError as error:
        raise RuntimeError("wrapped") from error


def by_context():
    try:
        raise VmfError("VMF213", **FIELDS)
    except VmfError:
        raise KeyError("wrapped")  # noqa: B904 - the context is what is tested


def by_text_of_an_inner_error():
    raise OSError("outer") from RuntimeError(f"Caught something\n{VmfError('VMF213', **FIELDS)}")


@pytest.mark.parametrize("build", [by_cause, by_context, by_text_of_an_inner_error])
def test_a_refusal_is_found_along_the_chain(build):
    assert fields(find_vmf_error(raised(build))) == {"code": "VMF213", **FIELDS}


def test_other_errors_are_not_refusals_and_a_circle_ends():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert find_vmf_error(first) is None
    assert find_vmf_error(ValueError("error VMF: no number")) is None
