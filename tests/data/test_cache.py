# SPDX-License-Identifier: Apache-2.0
"""A bad entry is never served, is rebuilt with one warning, and gives the tensors of a fresh cache."""

import functools
import json
import multiprocessing
import os
import warnings

import numpy as np
import pytest
import torch
from monai.transforms import Compose, Lambda, RandFlip, ScaleIntensity
from safetensors.numpy import load_file, save_file
from slice_files import chain

import vmfseg
from vmfseg.data.cache import CachedStack, CacheFault, VolumeCache, config_text
from vmfseg.utils import VmfError


@pytest.fixture
def row(tmp_path):
    (tmp_path / "image.nii").write_bytes(b"image" * 100)
    (tmp_path / "label.nii").write_bytes(b"label" * 100)
    return {"image": str(tmp_path / "image.nii"), "label": str(tmp_path / "label.nii"), "frame": 3, "domain": "A"}


def arrays():
    rng = np.random.default_rng(0)
    return {
        "image": rng.random((4, 1, 9, 7), dtype=np.float32),
        "label": rng.integers(0, 4, (4, 1, 9, 7), dtype=np.uint8),
        "presence": rng.random((4, 3)) > 0.5,
    }


def equal(got, expected):
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(got[name], expected[name])


def count_calls():
    calls = []

    def build():
        calls.append(1)
        return arrays()

    return build, calls


def test_an_entry_is_built_once_and_read_back_whole_or_by_slice(tmp_path, row):
    build, calls = count_calls()
    for _ in range(3):
        cache = VolumeCache(tmp_path / "c", "config")
        equal(cache.arrays(row, build), arrays())
        stack = cache.stack(row, build)
        assert len(stack) == 4
        for z in range(4):
            np.testing.assert_array_equal(stack.read("image", z), arrays()["image"][z])
    assert len(calls) == 1
    assert not cache.rebuilt
    assert [p.suffix for p in (tmp_path / "c").rglob("*") if p.is_file()] == [".safetensors"]


def truncate(path, key):
    path.write_bytes(path.read_bytes()[:-200])


def truncate_header(path, key):
    path.write_bytes(path.read_bytes()[:30])


def empty(path, key):
    path.write_bytes(b"")


def garbage(path, key):
    path.write_bytes(os.urandom(5000))


def pickled(path, key):
    torch.save({"image": torch.zeros(3)}, path)


def foreign_version(path, key):
    meta = {"format": "vmfseg-cache-1", "version": "0.0.0", "key": key, "digest": "0"}
    save_file(load_file(path), path, metadata=meta)


def no_metadata(path, key):
    save_file(load_file(path), path)


def other_entry(path, key):
    """The entry of another volume under this name: stale."""
    other = VolumeCache(path.parent / "other", "other settings")
    stack = other.stack({}, lambda: {"image": np.zeros((4, 1, 9, 7), np.float32)})
    path.write_bytes(stack.path.read_bytes())


def swapped_arrays(path, key):
    """Right checksums for the wrong slices: values and checksums both moved, metadata kept."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        meta = json.loads(file.read(size))["__metadata__"]
    data = {name: np.ascontiguousarray(value[::-1]) for name, value in load_file(path).items()}
    save_file(data, path, metadata=meta)


def a_folder(path, key):
    path.unlink()
    path.mkdir()


FAULTS = [truncate, truncate_header, empty, garbage, pickled, foreign_version, no_metadata, other_entry, swapped_arrays]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", ["arrays", "stack"])
def test_a_bad_entry_is_rebuilt_with_one_warning_and_equal_tensors(tmp_path, row, fault, way):
    cache = VolumeCache(tmp_path / "c", "config")
    key = cache.key(row)
    fault(cache.stack(row, arrays).path, key)
    fresh = VolumeCache(tmp_path / "c", "config")
    build, calls = count_calls()
    with pytest.warns(UserWarning, match=f"cache entry {key}.* is not used") as caught:
        got = getattr(fresh, way)(row, build)
    assert len(caught) == len(calls) == len(fresh.rebuilt) == 1
    equal(got if way == "arrays" else {name: got.read(name) for name in got.shapes}, arrays())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equal(VolumeCache(tmp_path / "c", "config").arrays(row, pytest.fail), arrays())


def test_every_single_flipped_bit_is_noticed(tmp_path, row):
    cache = VolumeCache(tmp_path / "c", "config")
    stack = cache.stack(row, arrays)
    good = stack.path.read_bytes()
    key = cache.key(row)
    rng = np.random.default_rng(0)
    places = {*rng.integers(0, len(good), 300).tolist(), *range(0, 700, 3), len(good) - 1}
    for place in places:
        data = bytearray(good)
        data[place] ^= 1 << int(rng.integers(8))
        stack.path.write_bytes(data)
        try:
            opened = CachedStack(stack.path, key)
            got = {name: opened.read(name) for name in opened.shapes}
        except CacheFault:
            continue
        equal(got, arrays())  # a bit without meaning, such as padding of the header
    stack.path.write_bytes(good)


def test_many_bad_entries_one_warning(tmp_path, row):
    rows = [{**row, "frame": k} for k in range(5)]
    for r in rows:
        empty(VolumeCache(tmp_path / "c", "config").stack(r, arrays).path, "")
    cache = VolumeCache(tmp_path / "c", "config")
    with pytest.warns(UserWarning, match="so is any other bad entry") as caught:
        got = [cache.arrays(r, arrays) for r in rows]
    for each in got:
        equal(each, arrays())
    assert len(caught) == 1
    assert len(cache.rebuilt) == 5


def test_the_key_is_content_settings_row_and_version_not_the_path(tmp_path, row, monkeypatch):
    key = VolumeCache(tmp_path, "config").key(row)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    copies = {name: str(moved / f"{name}.nii") for name in ("image", "label")}
    for name, path in copies.items():
        with open(row[name], "rb") as source, open(path, "wb") as target:
            target.write(source.read())
    assert VolumeCache(tmp_path / "c", "config").key({**row, **copies}) == key
    others = {
        "config": VolumeCache(tmp_path, "other").key(row),
        "frame": VolumeCache(tmp_path, "config").key({**row, "frame": 4}),
        "no label": VolumeCache(tmp_path, "config").key({k: v for k, v in row.items() if k != "label"}),
        "label as image": VolumeCache(tmp_path, "config").key({**row, "image": row["label"]}),
        "raters": VolumeCache(tmp_path, "config").key({**row, "label": [row["label"], row["label"]]}),
    }
    monkeypatch.setattr(vmfseg, "__version__", "9.9.9")
    others["version"] = VolumeCache(tmp_path, "config").key(row)
    assert len({key, *others.values()}) == 1 + len(others)


@pytest.mark.parametrize("which", ["image", "label"])
def test_a_replaced_scan_is_not_served_from_the_old_entry(tmp_path, row, which):
    VolumeCache(tmp_path / "c", "config").arrays(row, arrays)
    with open(row[which], "r+b") as file:
        file.write(b"IMAGE")
    build, calls = count_calls()
    VolumeCache(tmp_path / "c", "config").arrays(row, build)
    assert len(calls) == 1


def test_a_missing_scan_is_an_error_even_if_it_was_cached(tmp_path, row):
    VolumeCache(tmp_path / "c", "config").arrays(row, arrays)
    os.unlink(row["image"])
    with pytest.raises(VmfError, match="VMF201"):
        VolumeCache(tmp_path / "c", "config").arrays(row, arrays)


def test_a_folder_of_dicom_files_counts_by_content(tmp_path):
    series = tmp_path / "series"
    series.mkdir()
    (series / "1.dcm").write_bytes(b"one")
    cache = VolumeCache(tmp_path / "c", "config")
    first = cache.key({"image": str(series)})
    (series / "2.dcm").write_bytes(b"two")
    assert cache.key({"image": str(series)}) != first


def test_a_folder_that_cannot_be_written_is_a_resource_error(tmp_path, row):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(VmfError, match="VMF502") as caught:
        VolumeCache(tmp_path / "file", "config").stack(row, arrays)
    assert caught.value.exit_code == 6


def _hammer(folder, row, number):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(30):
            cache = VolumeCache(folder, "config")
            equal(cache.arrays(row, arrays), arrays())
            assert len(cache.stack(row, arrays)) == 4
            if (k + number) % 7 == 0:  # somebody clears the folder meanwhile
                cache.path(cache.key(row)).unlink(missing_ok=True)


def test_processes_share_a_folder(tmp_path, row):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_hammer, args=(tmp_path / "c", row, k)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert all(p.suffix == ".safetensors" and not p.name.startswith(".") for p in (tmp_path / "c").rglob("*.*"))


def twice(x):
    return 2 * x


def test_config_text_tells_settings_apart():
    def build(scale, function=twice):
        return Compose([ScaleIntensity(0, scale), Lambda(function), RandFlip()])

    text = config_text(build(1.0))
    assert text == config_text(build(1.0))
    assert "0x" not in text
    others = [
        config_text(build(2.0)),
        config_text(build(1.0, lambda x: 3 * x)),
        config_text(Compose([ScaleIntensity(0, 1.0)])),
    ]
    assert len({text, *others}) == 4
    assert config_text(functools.partial(twice, x=1)) != config_text(functools.partial(twice, x=2))
    assert config_text(ScaleIntensity(0, 1.0).__call__) != config_text(ScaleIntensity(0, 2.0).__call__)


@pytest.mark.parametrize(
    "change",
    [{"pixdim": 1.3}, {"roi": 40}, {"percentiles": (1.0, 99.0)}, {"normalize": "volume"}, {"label_map": {1: 2}}],
    ids=str,
)
def test_config_text_of_our_chain_sees_every_setting(change):
    assert config_text(chain(**{"roi": 32, "pixdim": 1.2, **change})) != config_text(chain(roi=32, pixdim=1.2))
    assert config_text(chain(roi=32, pixdim=1.2)) == config_text(chain(roi=32, pixdim=1.2))
