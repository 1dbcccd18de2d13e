# SPDX-License-Identifier: Apache-2.0
"""A bad entry is never served, is rebuilt with one warning, and gives the tensors of a fresh cache."""

import functools
import multiprocessing
import os
import warnings

import numpy as np
import pytest
import torch
from monai.transforms import Compose, Lambda, RandFlip, ScaleIntensity
from slice_files import chain

import vmfseg
from vmfseg.data.disk_cache import DiskCache, config_text
from vmfseg.utils import VmfError


@pytest.fixture
def row(tmp_path):
    (tmp_path / "image.nii").write_bytes(b"image" * 100)
    (tmp_path / "label.nii").write_bytes(b"label" * 100)
    return {"image": str(tmp_path / "image.nii"), "label": str(tmp_path / "label.nii"), "frame": 3, "domain": "A"}


def volumes():
    rng = np.random.default_rng(0)
    return {
        "image": torch.from_numpy(rng.random((1, 9, 7, 4), dtype=np.float32)),
        "label": torch.from_numpy(rng.integers(0, 4, (1, 9, 7, 4), dtype=np.uint8)),
        "subject": "s1",
    }


def same(got):
    expected = volumes()
    assert got.keys() == expected.keys()
    assert got["subject"] == "s1"
    for name in ("image", "label"):
        assert got[name].dtype == expected[name].dtype
        assert torch.equal(got[name], expected[name])


class Build:
    """Stands for transforms; counts how often it runs, which is no setting."""

    calls = 0

    def __call__(self, row):
        Build.calls += 1
        return volumes()


def cache(folder, *rows, settings=()):
    Build.calls = 0
    return DiskCache(list(rows), Compose([Lambda(Build()), *settings]), folder)


def entry(folder, row):
    built = cache(folder, row)
    built[0]
    return built.path(built.key(row))


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_an_entry_is_built_once_and_read_back(tmp_path, row, mapped):
    same(cache(tmp_path / "c", row)[0])
    assert Build.calls == 1
    again = cache(tmp_path / "c", row)
    same(again.fetch(0, mapped))
    assert Build.calls == 0
    assert not again.rebuilt
    assert [p.suffix for p in (tmp_path / "c").rglob("*") if p.is_file()] == [".pt"]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


def truncate_header(path):
    path.write_bytes(path.read_bytes()[:30])


def empty(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(os.urandom(5000))


def flipped_voxel(path):
    data = bytearray(path.read_bytes())
    place = data.find(volumes()["image"].numpy().tobytes()[:64])
    data[place + 5] ^= 1
    path.write_bytes(data)


def foreign(path):
    torch.save({"image": torch.zeros(3)}, path)


def other_entry(path):
    """The entry of another volume under this name: stale."""
    torch.save({"key": "0" * 64, "item": {"image": torch.zeros(3)}}, path)


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("executed",))


def executable(path):
    torch.save({"key": path.stem, "item": Evil()}, path)


FAULTS = [truncate, truncate_header, empty, garbage, flipped_voxel, foreign, other_entry, executable]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_a_bad_entry_is_rebuilt_with_one_warning_and_equal_tensors(tmp_path, row, fault, mapped, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = entry(tmp_path / "c", row)
    fault(path)
    fresh = cache(tmp_path / "c", row)
    with pytest.warns(UserWarning, match=f"cache entry {path.name} .* is not used") as caught:
        same(fresh.fetch(0, mapped))
    assert len(caught) == Build.calls == len(fresh.rebuilt) == 1
    assert not (tmp_path / "executed").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(cache(tmp_path / "c", row)[0])
    assert Build.calls == 0


def test_every_single_flipped_bit_is_noticed(tmp_path, row):
    path = entry(tmp_path / "c", row)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    reader = cache(tmp_path / "c", row)
    key = path.stem
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in {*rng.integers(0, len(good), 200).tolist(), *range(0, 600, 3), len(good) - 1}:
            data = bytearray(good)
            data[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(data)
            reader._intact.clear()
            got = reader._read(key, mapped=False)
            if got is not None:  # a bit without meaning, such as a date
                same(got)


def test_many_bad_entries_one_warning(tmp_path, row):
    rows = [{**row, "frame": k} for k in range(5)]
    for each in rows:
        empty(entry(tmp_path / "c", each))
    fresh = cache(tmp_path / "c", *rows)
    with pytest.warns(UserWarning, match="so is any other bad entry") as caught:
        got = [fresh[k] for k in range(5)]
    for each in got:
        same(each)
    assert len(caught) == 1
    assert len(fresh.rebuilt) == 5


def test_the_key_is_content_settings_row_and_version_not_the_path(tmp_path, row, monkeypatch):
    plain = cache(tmp_path, row)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    copies = {name: str(moved / f"{name}.nii") for name in ("image", "label")}
    for name, path in copies.items():
        with open(row[name], "rb") as source, open(path, "wb") as target:
            target.write(source.read())
    assert cache(tmp_path / "c").key({**row, **copies}) == plain.key(row)
    others = {
        "settings": cache(tmp_path, settings=[ScaleIntensity()]).key(row),
        "frame": plain.key({**row, "frame": 4}),
        "slices": plain.key({**row, "slices": "2-3"}),
        "no label": plain.key({k: v for k, v in row.items() if k != "label"}),
        "label as image": plain.key({**row, "image": row["label"]}),
        "raters": plain.key({**row, "label": [row["label"], row["label"]]}),
        "channels": plain.key({**row, "image": [row["image"], row["label"]]}),
    }
    known = plain.key(row)
    monkeypatch.setattr(vmfseg, "__version__", "9.9.9")
    others["version"] = plain.key(row)
    assert len({known, *others.values()}) == 1 + len(others)


@pytest.mark.parametrize("which", ["image", "label"])
def test_a_replaced_scan_is_not_served_from_the_old_entry(tmp_path, row, which):
    entry(tmp_path / "c", row)
    with open(row[which], "r+b") as file:
        file.write(b"IMAGE")
    cache(tmp_path / "c", row)[0]
    assert Build.calls == 1


def test_a_missing_scan_is_an_error_even_if_it_was_cached(tmp_path, row):
    entry(tmp_path / "c", row)
    os.unlink(row["image"])
    with pytest.raises(VmfError, match="VMF201"):
        cache(tmp_path / "c", row)[0]


def test_a_folder_of_dicom_files_counts_by_content(tmp_path):
    series = tmp_path / "series"
    series.mkdir()
    (series / "1.dcm").write_bytes(b"one")
    plain = cache(tmp_path / "c")
    first = plain.key({"image": str(series)})
    (series / "2.dcm").write_bytes(b"two")
    assert plain.key({"image": str(series)}) != first


def test_a_folder_that_cannot_be_written_is_a_resource_error(tmp_path, row):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(VmfError, match="VMF502") as caught:
        cache(tmp_path / "file", row)[0]
    assert caught.value.exit_code == 6


def _hammer(folder, row, number):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(20):
            one = cache(folder, row)
            same(one.fetch(0, mapped=k % 2 == 0))
            if (k + number) % 7 == 0:  # somebody clears the folder meanwhile
                one.path(one.key(row)).unlink(missing_ok=True)


def test_processes_share_a_folder(tmp_path, row):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_hammer, args=(tmp_path / "c", row, k)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert all(p.suffix == ".pt" and not p.name.startswith(".") for p in (tmp_path / "c").rglob("*.*"))


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
