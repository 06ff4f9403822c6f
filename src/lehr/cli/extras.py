"""Which extras a command needs: `pip install lehr` brings torch alone, and a missing package is one sentence.

>>> print(missing_sentence("train", "lightning"))
lehr train needs lightning, which is not installed: pip install 'lehr[train]'
"""

from __future__ import annotations

# A command that is not here needs none.
EXTRAS = {
    "demo": "train,deploy",
    "train": "train",
    "evaluate": "train",
    "recipes": "train",
    "data": "train",
    "summary": "train",
    "report": "train",
    "compare": "train",
    "export": "train,deploy",
    "predict": "deploy",
    "bench": "deploy",
    "zoo": "deploy",
    "approximate": "train",
    "figures": "train",
    "completion": "train",
}
# Modules that one extra alone brings, whatever the command.
_OF_MODULES = {"webdataset": "imagenet", "ray": "ray"}
# The other modules that extras bring; any other that is missing is a user's own, or a defect.
_MODULES = frozenset(
    {
        *("PIL", "docstring_parser", "filelock", "jinja2", "jsonargparse", "lightning", "matplotlib", "ml_dtypes"),
        *("numpy", "onnx", "onnxruntime", "rich", "safetensors", "shtab", "sklearn", "tensorboard", "yaml"),
    }
)


def missing_sentence(word: str, module: str) -> str | None:
    """Return what to install if a command lacks a module, or None if it is not of an extra.

    Args:
        word: the command.
        module: the full name of the module that could not be imported.
    """
    package = module.split(".")[0]
    if package in ("torch", "packaging"):
        return f"lehr {word} needs {package}, which is not installed: pip install lehr"
    extra = _OF_MODULES.get(package) or (EXTRAS.get(word) if package in _MODULES else None)
    if extra is None:
        return None
    return f"lehr {word} needs {package}, which is not installed: pip install 'lehr[{extra}]'"
