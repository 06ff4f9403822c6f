"""Upgrade recipes of earlier versions of lehr, so that old run folders keep working.

>>> upgraded({"annealing": {"windows": "same-end", "duration": 5}})
{'annealing': {'schedule': {'class_path': 'lehr.annealing.SameEnd', 'init_args': {'duration': 5}}}}
>>> upgraded({"model": {"name": "vgg", "width": 0.25}})
{'model': {'class_path': 'lehr.models.VGG', 'init_args': {'width': 0.25}}}
"""

from __future__ import annotations

from typing import Any

from lehr.training.model import NETWORKS

_SCHEDULES = {
    "hierarchical": "lehr.annealing.Hierarchical",
    "last-first": "lehr.annealing.LastFirst",
    "same-start": "lehr.annealing.SameStart",
    "same-end": "lehr.annealing.SameEnd",
    "all-at-once": "lehr.annealing.AllAtOnce",
}
_CLASSES = {
    "lehr.annealing.Linear": "lehr.annealing.LinearDecay",
    "lehr.annealing.Power": "lehr.annealing.PowerDecay",
    "lehr.annealing.Cosine": "lehr.annealing.CosineDecay",
}


def upgraded(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's keys and values as this version writes them; current ones are unchanged."""
    settings = _renamed(settings)
    old = settings.get("annealing")
    if isinstance(old, dict) and not old.keys().isdisjoint(("windows", "duration", "delay")):
        kept = {key: value for key, value in old.items() if key not in ("windows", "duration", "delay")}
        windows = str(old.get("windows", "hierarchical"))
        times = {"duration": 50.0} | {key: old[key] for key in ("duration", "delay") if key in old}
        schedule = {"class_path": _SCHEDULES.get(windows, windows), "init_args": times}
        settings["annealing"] = {"schedule": schedule, **kept}
    algorithm = settings.get("algorithm")
    if isinstance(algorithm, dict) and algorithm.get("class_path") == "lehr.algorithms.ANA":
        settings["algorithm"] = _estimated(algorithm)
    data = settings.get("data")
    if isinstance(data, dict) and data.get("name") == "generated-images":
        settings["data"] = data | {"name": "shapes"}
    old = settings.get("model")
    if isinstance(old, dict) and "name" in old:
        kept = {key: value for key, value in old.items() if key != "name"}
        if old["name"] != "mlp":
            kept.pop("hidden", None)  # was a key of every network, but only mlp used it
        name = str(old["name"])
        path = f"lehr.models.{NETWORKS[name].__name__}" if name in NETWORKS else name
        settings["model"] = {"class_path": path, "init_args": kept}
    return settings


def _estimated(ana: dict[str, Any]) -> dict[str, Any]:
    """Return ANA without forward noise as `Estimated`: it is a plain estimator, such as the straight-through one."""
    old = ana.get("init_args")
    if not isinstance(old, dict) or old.get("std") != 0 or not isinstance(old.get("backward_std"), int | float):
        return ana
    kind = old.get("backward_noise") or old.get("noise") or "uniform"
    backward = {str(kind): {"std": old["backward_std"]}}
    steps = [old.get(side) or "ternary" for side in ("weights", "activations")]
    weights, activations = ({"step": step, "forward": "none", "backward": backward} for step in steps)
    kept = {key: old[key] for key in ("scale", "clip", "first", "last") if key in old}
    own = {} if steps[0] == steps[1] else {"activations": activations}
    return {"class_path": "lehr.algorithms.Estimated", "init_args": {"estimator": weights, **own, **kept}}


def _renamed(value: Any) -> Any:
    """Replace old names of classes."""
    if isinstance(value, dict):
        named = {key: _renamed(part) for key, part in value.items()}
        path = named.get("class_path")
        return named | {"class_path": _CLASSES[path]} if isinstance(path, str) and path in _CLASSES else named
    return [_renamed(part) for part in value] if isinstance(value, list) else value
