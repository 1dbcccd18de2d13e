# SPDX-License-Identifier: Apache-2.0
"""Content of ``quality.json``: the flag with its reasons, and the function of the heart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vmfseg.metrics.volumes import CAVITIES, ejection_fraction
from vmfseg.model.locate import Sight
from vmfseg.model.prediction import FramePrediction, volume_statistics
from vmfseg.model.quality import QualityModel, worst_light
from vmfseg.model.shift import ShiftReference, SubjectStatistics

__all__ = ["MYOCARDIUM_DENSITY", "flag", "heart_function", "judge"]

#: Of heart muscle, in grams a milliliter.
MYOCARDIUM_DENSITY = 1.05


def judge(
    found: Mapping[int, FramePrediction],
    phases: Mapping[str, int],
    model: QualityModel | None,
    source: ShiftReference | None,
) -> dict[str, Any]:
    """Return what ``quality.json`` says of a scan: the flag, the predicted Dice, the shift test and every frame.

    Args:
        found: the frames that were segmented, by number.
        phases: frames of ED and ES.
        model: of the predicted Dice, or ``None``.
        source: what source scans look like, or ``None``. One scan is a weak test; ``vmfseg shift`` takes many.
    """
    names = {number: phase for phase, number in phases.items()}
    frames = [{"frame": number, "phase": names.get(number), **_frame(found[number], model)} for number in sorted(found)]
    scores = [frame for frame in frames if frame["predicted_dice"] is not None]
    worst: Mapping[str, Any] = min(scores, key=lambda frame: float(frame["predicted_dice"]), default={})
    shift = None
    if source is not None and found:
        statistics = SubjectStatistics.average([volume_statistics(frame) for frame in found.values()])
        shift = source.compare([statistics]).as_dict()
    empty = any(not frame["signals"].get("present", 1.0) for frame in frames)
    light, reasons = flag([str(frame["light"]) for frame in frames], shift, [f.sight for f in found.values()], empty)
    return {
        "light": light,
        "light_reasons": reasons,
        "predicted_dice": worst.get("predicted_dice"),
        "interval": worst.get("interval"),
        "structures": worst.get("structures", {}),
        "shift": shift,
        "looked_at": min((frame["view"]["looked_at"] for frame in frames), default=0.0),
        "phases": dict(phases),
        "function": heart_function(frames, phases),
        "frames": frames,
    }


def _frame(frame: FramePrediction, model: QualityModel | None) -> dict[str, Any]:
    signals = frame.signals if model is None else model.judged(frame)
    parts = {} if model is None else model.predict_structures(signals)
    return {
        "light": "unknown" if model is None else model.light(signals),
        "predicted_dice": None if model is None else round(model.predict(signals), 4),
        "interval": None if model is None else _rounded(model.bounds(signals)),
        "structures": {n: {"dice": round(p["dice"], 4), "interval": _rounded(p["interval"])} for n, p in parts.items()},
        "signals": {name: round(value, 6) for name, value in signals.items()},
        "kernel_shares": [round(share, 6) for share in frame.kernel_shares],
        "volumes_ml": {name: round(volume, 3) for name, volume in frame.volumes.items()},
        "view": frame.sight.as_dict(),
        "orientation": "of the header" if frame.turn is None else f"lost in the header; taken {frame.turn}",
    }


def _rounded(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [round(value, 4) for value in values]


def flag(
    lights: Sequence[str], shift: Mapping[str, Any] | None, sights: Sequence[Sight] = (), empty: bool = False
) -> tuple[str, list[str]]:
    """Return the flag of a scan and why it is not green.

    The most alarming frame decides. A scan that is unlike the training scans, or whose organ runs over the edge of what
    the model looks at, is amber at best: the predicted Dice was learnt on scans where neither was the case.

    Args:
        lights: of the frames.
        shift: the report of the shift test, or ``None`` without one.
        sights: where the model looked in the frames.
        empty: whether a frame has no structure at all.

    Example:
        >>> flag(["green", "green"], {"new": True, "p_value": 0.01})
        ('amber', ['unlike the training scans (p = 0.01)'])
    """
    worst = worst_light(list(lights))
    reasons = {
        "red": ["no structure was found" if empty else "a low Dice is predicted"],
        "amber": ["the predicted Dice is near 0.7"],
    }
    said = list(reasons.get(worst, []))
    alarms = []
    if shift is not None and shift["new"]:
        alarms.append(f"unlike the training scans (p = {shift['p_value']:.2g})")
    if any(sight.cut for sight in sights):
        alarms.append("the structures run over the edge of the window that the model looks at")
    return ("amber" if alarms and worst in ("green", "unknown") else worst), said + alarms


def heart_function(frames: Sequence[Mapping[str, Any]], phases: Mapping[str, int]) -> dict[str, Any]:
    """Return volumes at end-diastole and end-systole, ejection fraction and mass of the myocardium, as far as known.

    The mass is taken at end-diastole; of a scan of one frame, in that frame, whatever phase it is.

    Args:
        frames: entries of ``quality.json``, with ``frame`` and ``volumes_ml``.
        phases: frames of ED and ES.

    Example:
        >>> frames = [{"frame": 0, "volumes_ml": {"LV": 150.0, "MYO": 100.0}}, {"frame": 3, "volumes_ml": {"LV": 60.0}}]
        >>> heart_function(frames, {"ED": 0, "ES": 3})
        {'LV': {'edv_ml': 150.0, 'esv_ml': 60.0, 'ef_percent': 60.0}, 'myocardium_g': 105.0}
    """
    volumes = {int(frame["frame"]): frame["volumes_ml"] for frame in frames}
    first = next(iter(volumes), None) if len(volumes) == 1 else None
    diastole, systole = phases.get("ED", first), phases.get("ES")
    found: dict[str, Any] = {}
    if diastole is None or diastole not in volumes:
        return found
    if systole in volumes and diastole != systole:
        for name in volumes[diastole]:
            if name.upper() in CAVITIES:
                edv, esv = volumes[diastole][name], volumes[systole][name]
                ef = ejection_fraction(edv, esv)
                found[name] = {"edv_ml": edv, "esv_ml": esv, "ef_percent": None if ef is None else round(ef, 1)}
    muscle = next((name for name in volumes[diastole] if name.upper() == "MYO"), None)
    if muscle is not None:
        found["myocardium_g"] = round(MYOCARDIUM_DENSITY * volumes[diastole][muscle], 1)
    return found
