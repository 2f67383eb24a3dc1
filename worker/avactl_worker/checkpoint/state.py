"""States of the objects of a training script, and of random generators."""

from __future__ import annotations

import logging
import random
import sys
from typing import Any, Iterable, Mapping

from avactl_worker.checkpoint.errors import CheckpointError

log = logging.getLogger("avactl_worker")
_RANDOM = "random generators"
"""Key of the generators; it is no name of an argument."""


def checked(objects: Mapping[str, Any]) -> None:
    """Raise CheckpointError for an object whose state cannot be saved."""
    for name, each in objects.items():
        stateful = hasattr(each, "state_dict") and hasattr(each, "load_state_dict")
        if not stateful and not isinstance(each, dict) and not hasattr(each, "bit_generator"):
            raise CheckpointError(
                f"{name} is of {type(each).__name__}: give an object with state_dict() and load_state_dict(), a dict, "
                "or a generator of NumPy"
            )


def captured(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of objects, and of the random generators of Python, NumPy and torch. Nothing is copied."""
    state: dict[str, Any] = {}
    for name, each in objects.items():
        if hasattr(each, "state_dict"):
            state[name] = each.state_dict()
        else:
            state[name] = each if isinstance(each, dict) else each.bit_generator.state
    state[_RANDOM] = generators = {"python": random.getstate()}
    if "numpy.random" in sys.modules:
        generators["numpy"] = sys.modules["numpy.random"].get_state()
    torch = sys.modules.get("torch")
    if torch is not None:
        generators["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            generators["cuda"] = torch.cuda.get_rng_state_all()
    return state


def optimizers(objects: Mapping[str, Any]) -> list[Any]:
    """Return torch's optimizers among objects. Raises CheckpointError if there is none that calls hooks."""
    torch = sys.modules.get("torch")
    found = [] if torch is None else [each for each in objects.values() if isinstance(each, torch.optim.Optimizer)]
    found = [each for each in found if hasattr(each, "register_step_pre_hook")]
    if not found:
        raise CheckpointError("overlap=True needs an optimizer of torch 2.0 or newer among the objects")
    return found


def addresses(optimizers: Iterable[Any]) -> set[int]:
    """Return the addresses of what optimizers update on the CPU: parameters, and their own tensors."""
    found: set[int] = set()
    for each in optimizers:
        tensors = [parameter for group in each.param_groups for parameter in group["params"]]
        tensors += [value for own in each.state.values() for value in own.values() if hasattr(value, "data_ptr")]
        found.update(tensor.data_ptr() for tensor in tensors if tensor.device.type == "cpu" and tensor.numel())
    return found


def put_back(objects: Mapping[str, Any], state: dict[str, Any], generators: bool) -> None:
    """Give objects their states, and also the random generators. Raises CheckpointError if one is missing."""
    found = state.pop(_RANDOM, {})
    missing = [name for name in objects if name not in state]
    if missing:
        raise CheckpointError(f"it has no state of {', '.join(missing)}, but of {', '.join(state) or 'nothing'}")
    unused = [name for name in state if name not in objects]
    if unused:
        log.warning("the checkpoint's state of %s is not used", ", ".join(unused))
    for name, each in objects.items():
        if hasattr(each, "load_state_dict"):
            each.load_state_dict(state[name])
        elif isinstance(each, dict):
            each.clear()
            each.update(state[name])
        else:
            each.bit_generator.state = state[name]
    if generators:
        _seed(found)


def _seed(found: dict[str, Any]) -> None:
    if "python" in found:
        random.setstate(found["python"])
    if "numpy" in found and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(found["numpy"])
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in found:
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.device_count() == len(found["cuda"]):
            torch.cuda.set_rng_state_all(found["cuda"])
