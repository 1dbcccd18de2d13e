# SPDX-License-Identifier: Apache-2.0
"""What a config from elsewhere may build and call: an allow-list, because a deny-list is never complete.

``_target_`` runs any function of any package, and many packages that a bundle needs hold functions that start programs,
open pickles or ask the network. Allowed are classes that are *defined* in the packages below (a class that is only
imported there is not), minus those that write, download or import by themselves, and a short list of functions.
"""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from typing import Any

from monai.bundle.config_item import ComponentLocator

from vmfseg.utils import VmfError, did_you_mean

__all__ = [
    "FUNCTIONS",
    "LITERAL_ARGUMENTS",
    "MODULES",
    "NAME_ARGUMENTS",
    "REFUSED_ARGUMENTS",
    "WRITE_ARGUMENTS",
    "find_target",
    "missing_target",
    "nearest_target",
    "target_problem",
]

#: Packages whose classes may be built.
_PACKAGES = (
    "ignite.handlers",
    "ignite.metrics",
    "monai.data",
    "monai.engines",
    "monai.handlers",
    "monai.inferers",
    "monai.losses",
    "monai.metrics",
    "monai.networks.blocks",
    "monai.networks.layers",
    "monai.networks.nets",
    "monai.optimizers",
    "monai.transforms",
    "torch.nn",
    "torch.optim",
    "torch.utils.data",
    "torch.utils.tensorboard",
    "vmfseg.data",
    "vmfseg.engines",
    "vmfseg.handlers",
    "vmfseg.model",
    "vmfseg.losses",
    "vmfseg.metrics",
    "vmfseg.networks",
    "vmfseg.transforms",
)
#: Of packages with many dangerous classes, only these.
_ONLY = {
    "ignite.handlers": {
        "EarlyStopping", "EMAHandler", "LRScheduler", "PiecewiseLinear", "TerminateOnNan", "TimeLimit", "Timer",
    },
    "monai.data": {
        "ArrayDataset", "CacheDataset", "DataLoader", "Dataset", "DistributedSampler", "GridPatchDataset", "ITKReader",
        "ITKWriter", "ImageDataset", "IterableDataset", "NibabelReader", "NibabelWriter", "NrrdReader", "PILReader",
        "PILWriter", "PatchDataset", "PatchIter", "PatchIterd", "PydicomReader", "ShuffleBuffer", "SmartCacheDataset",
        "ThreadDataLoader", "ZipDataset",
    },
    "monai.optimizers": {"ExponentialLR", "LinearLR", "Novograd", "WarmupCosineSchedule"},
    "torch.utils.data": {
        "BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler", "RandomSampler",
        "SequentialSampler", "Subset", "TensorDataset", "WeightedRandomSampler",
    },
    "torch.utils.tensorboard": {"SummaryWriter"},
    "vmfseg.data": {
        "FolderDataset", "FuseRatersd", "InterleavedLoader", "LoadVolumed", "MNMsDataset", "SCGMDataset",
        "SliceDataset", "SliceLoader", "SliceStream", "VolumeReader",
    },
    "vmfseg.model": {"CalibrationStage", "DeployedInferer", "ModelLoader", "SaveLabeld"},
}  # fmt: skip
#: Classes that ask the network, import by name, run other tools or write where they like.
_REFUSED = re.compile(
    r"(Rand)?(TorchVision|TorchIO|CuCIM)(d|D|Dict)?|WriteFileMapping(d|D|Dict)?|SimulateDelay(d|D|Dict)?|"
    r"ClearML\w*|MLFlow\w*|Trt\w*|ZarrAvgMerger|ProbMapProducer|PerceptualLoss|TorchVisionFCModel|MILModel|Transchex|"
    r"LearningRateFinder|Hyena\w*|LayerFactory|EfficientNet\w*|FID|InceptionScore"
)

#: Functions and constants that may be named, in ``_target_`` and in expressions.
FUNCTIONS = frozenset(
    [
        "vmfseg.bundle.config_closure", "vmfseg.bundle.find_root", "vmfseg.bundle.given_rows",
        "vmfseg.bundle.start_run", "vmfseg.bundle.distributed.device",
        "vmfseg.bundle.distributed.rank", "vmfseg.bundle.distributed.share", "vmfseg.bundle.distributed.start",
        "vmfseg.bundle.distributed.stop", "vmfseg.bundle.distributed.world_size", "vmfseg.bundle.distributed.wrap",
        "vmfseg.data.labeled_fraction", "vmfseg.data.leave_one_domain_out", "vmfseg.data.prepare_experiment",
        "vmfseg.handlers.scalar_terms", "vmfseg.model.find_rows", "vmfseg.transforms.slice_space_transforms",
        "vmfseg.transforms.strong_augment", "monai.data.decollate_batch", "monai.data.list_data_collate",
        "monai.data.load_decathlon_datalist", "monai.data.pad_list_data_collate", "monai.data.partition_dataset",
        "monai.data.utils.list_data_collate", "monai.data.utils.pad_list_data_collate", "monai.handlers.from_engine",
        "monai.handlers.stopping_fn_from_loss", "monai.handlers.stopping_fn_from_metric",
        "monai.handlers.utils.from_engine", "monai.utils.set_determinism", "torch.device", "torch.cuda.is_available",
        "torch.cuda.device_count", "torch.cuda.set_device", "torch.manual_seed", "torch.tensor", "torch.zeros",
        "torch.ones", "torch.argmax", "torch.softmax", "torch.sigmoid", "torch.channels_last",
        "torch.contiguous_format", "torch.float16", "torch.float32", "torch.float64", "torch.int32", "torch.int64",
        "torch.long", "torch.uint8", "torch.bool", "torch.distributed.get_rank", "torch.distributed.get_world_size",
        "torch.distributed.init_process_group", "torch.distributed.destroy_process_group",
        "torch.distributed.is_initialized", "numpy.array", "numpy.asarray", "numpy.arange", "numpy.linspace",
        "numpy.float32", "numpy.float64", "numpy.int32", "numpy.int64", "numpy.uint8", "numpy.inf", "numpy.nan",
        "numpy.pi", "os.path.basename", "os.path.dirname", "os.path.exists", "os.path.isdir", "os.path.isfile",
        "os.path.join", "os.path.splitext", "pathlib.Path", "glob.glob", "math.ceil", "math.floor", "math.inf",
        "math.log", "math.pi", "math.sqrt", "math.exp",
    ]
)  # fmt: skip

#: A function that calls what it is told to by name: as a ``_target_`` only, where the name can be looked at.
_BY_NAME = "vmfseg.bundle.distributed.first_rank_first"

#: Modules that ``$import`` may bring in. ``os`` alone is harmless here: only ``os.path`` can be named afterwards.
MODULES = frozenset(
    [
        "glob", "ignite", "ignite.handlers", "ignite.metrics", "math", "monai", "monai.data", "monai.engines",
        "monai.handlers", "monai.inferers", "monai.losses", "monai.metrics", "monai.networks", "monai.networks.nets",
        "monai.transforms", "monai.utils", "numpy", "os", "os.path", "pathlib", "torch", "torch.distributed",
        "torch.nn", "torch.optim", "vmfseg", "vmfseg.bundle", "vmfseg.bundle.distributed", "vmfseg.data",
        "vmfseg.engines", "vmfseg.handlers", "vmfseg.model", "vmfseg.losses", "vmfseg.metrics", "vmfseg.networks",
        "vmfseg.transforms",
    ]
)  # fmt: skip

#: Arguments that turn on pickles, downloads, a debugger or free names of files, whoever takes them.
REFUSED_ARGUMENTS = frozenset(
    [
        "_debug_", "allow_pickle", "bert_config", "download", "folder_layout", "multiprocessing_context",
        "output_name_formatter", "path_or_repo_id",
        "pickle_module", "pickle_protocol", "pretrained", "pretrained_path", "pretrained_url", "tracking_uri",
        "weights_only",
    ]
)  # fmt: skip
#: Arguments by which a class imports another one by its name: the names they may have.
LITERAL_ARGUMENTS = {
    "reader": frozenset({"ITKReader", "NibabelReader", "NrrdReader", "PILReader", "PydicomReader"}),
    "writer": frozenset({"ITKWriter", "NibabelWriter", "PILWriter"}),
    "merger_cls": frozenset({"AvgMerger"}),
    "call": frozenset({"vmfseg.data.prepare_experiment"}),
}
#: Arguments that say where files are written; they must lie below the bundle's own folders.
WRITE_ARGUMENTS = frozenset(
    [
        "base_path", "cache_dir", "ckpt_dir", "count_store", "dirname", "folder", "log_dir", "output_dir", "path",
        "save_dir", "store", "value_store",
    ]
)  # fmt: skip
#: Arguments that become a part of a file's name.
NAME_ARGUMENTS = frozenset(
    [
        "file_prefix", "filename", "filename_pattern", "filename_prefix", "filename_suffix", "final_filename",
        "key_metric_filename", "output_ext", "output_postfix", "postfix",
    ]
)  # fmt: skip


@cache
def target_problem(target: str) -> str:
    """Return why a ``_target_`` is refused, or an empty string. The libraries are looked at, nothing is called.

    Args:
        target: as in the config, dotted or bare.

    Example:
        >>> target_problem("os.system"), target_problem("vmfseg.networks.VMFNet"), target_problem("DataLoader")
        ('not in the list of what bundles may use', '', '')
        >>> target_problem("monai.transforms.Spacingdd"), target_problem("monai.transforms.io.array.Path")
        ('there is no such class', 'not in the list of what bundles may use')
    """
    if target == _BY_NAME or (target in FUNCTIONS and target.split(".")[0] in ("monai", "vmfseg")):
        return ""
    parts = target.split(".")
    if not all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", part) for part in parts):
        return "no plain dotted name"
    module, name = ".".join(parts[:-1]), parts[-1]
    modules = [module] if module else _bare(name)
    if not modules and name[0].isupper() and nearest_target(target):
        return _MISSING
    if not modules or not name[0].isupper() or not all(map(_package, modules)):
        return _LISTED
    found = _find(modules[0], name)
    if found is None:
        return _MISSING
    own = _package(found.__module__) if inspect.isclass(found) else None
    if own is None or _REFUSED.fullmatch(found.__name__) or _REFUSED.fullmatch(name):
        return _LISTED
    return "" if own not in _ONLY or found.__name__ in _ONLY[own] else _LISTED


def find_target(target: str) -> Any:
    """Return the class or function of an allowed ``_target_``, or ``None`` for any other."""
    if target_problem(target):
        return None
    module, _, name = target.rpartition(".")
    return _find(module or _bare(name)[0], name)


def missing_target(target: str) -> VmfError | None:
    """Return VMF312 for a misspelt class of an allowed package, or ``None``."""
    if target.startswith(("@", "$", "%")) or target_problem(target) != _MISSING:
        return None
    fix = nearest_target(target).strip() or "check the name against the documentation of the package"
    return VmfError("VMF312", rule="_target_ names a class that does not exist", found=target, fix=fix)


def nearest_target(target: str) -> str:
    """Return `` Did you mean 'x'?`` for a misspelt class of an allowed package, or an empty string.

    Example:
        >>> nearest_target("vmfseg.networks.VMFNett")
        " Did you mean 'vmfseg.networks.VMFNet'?"
    """
    module, _, name = target.rpartition(".")
    if module:
        return did_you_mean(target, (f"{module}.{word}" for word in _public(module))) if _package(module) else ""
    return did_you_mean(name, (word for p in _PACKAGES if p.startswith("monai.") for word in _public(p)))


_LISTED = "not in the list of what bundles may use"
_MISSING = "there is no such class"


def _package(module: str) -> str | None:
    return next((package for package in _PACKAGES if f"{module}.".startswith(f"{package}.")), None)


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _public(module: str) -> list[str]:
    try:
        found = vars(importlib.import_module(module))
    except ImportError:
        return []
    return [name for name, value in found.items() if name[0].isupper() and inspect.isclass(value)]


def _bare(name: str) -> list[str]:
    """Return the modules in which MONAI finds a bare name; it takes the first that happens to be imported."""
    found = _locator().get_component_module_name(name)
    return [str(module) for module in found] if isinstance(found, list) else [str(found)] if found else []


@cache
def _locator() -> Any:
    return ComponentLocator()  # it reads all of MONAI once
