"""What a checkpoint lacks of a model: transformers makes such numbers up and says so in its report, which is right for
a new head and wrong for a layer of the model that the files hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import transformers

from tilewright.errors import MissingTensor


class Unfilled:
    """Listens to what transformers finds missing while it loads a model.

    Parameters
    ----------
    model : that is about to be loaded.

    Attributes
    ----------
    later : tensors of the model that are filled afterwards; what files have under their names is none of transformers'.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.missing = model, set[str]()
        self.later: Collection[str] = ()
        adjust = model._adjust_missing_and_unexpected_keys

        def told(found: Any) -> None:
            adjust(found)
            found.missing_keys -= set(self.later)
            found.mismatched_keys = {one for one in found.mismatched_keys if one[0] not in self.later}
            self.missing = set(found.missing_keys)

        model._adjust_missing_and_unexpected_keys = told

    def check(self) -> None:
        """Whether all that is missing is new: a part that the stored model has not.

        Raises
        ------
        MissingTensor : the files lack a tensor of the very model that they hold.
        """
        self.model.__dict__.pop("_adjust_missing_and_unexpected_keys", None)
        missing = sorted(self.missing - self._new(self.missing))
        if not missing:
            return
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise MissingTensor(
            f"{', '.join(missing[:4])}{more}: the model has such tensors, and no file gave them numbers",
            hint="a file of the checkpoint is missing or incomplete, or its tensors are called otherwise",
        )

    def _new(self, names: set[str]) -> set[str]:
        """Those of names of the model's that the stored model has not: a head for another task."""
        stored = next(iter(getattr(self.model.config, "architectures", None) or ()), None)
        of = getattr(transformers, stored or "", None)
        if not names or of is None or stored == type(self.model).__name__:
            return set()
        with torch.device("meta"):
            known = {_inside(name, of.base_model_prefix) for name in of(self.model.config).state_dict()}
        return {name for name in names if _inside(name, self.model.base_model_prefix) not in known}


def _inside(name: str, prefix: str) -> str:
    """A tensor's name without the base model's, which a model with a head puts before it."""
    return name.removeprefix(f"{prefix}.")
