"""How transformers comes to us: by its registry, and by a dispatcher that knows our files and checkpoints to be run as
they are.

transformers passes over a ``quant_method`` that it does not know, and gives a model of random weights; it refuses a
configuration without. So our files have none: who has not imported `tilewright.hf` gets an error and no random weights.
The dispatcher tells them by ``quantized_by``. Who takes the configuration away gets an error too, since what has the
names of dense weights in our files is of other sizes (`quant.files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig
from transformers.quantizers import auto

from tilewright.conversion.methods import OURS
from tilewright.conversion.settings import is_mlx
from tilewright.errors import CannotQuantize


def is_ours(config: object) -> bool:
    """Whether a checkpoint's configuration of quantisation is one that tilewright wrote."""
    return isinstance(config, Mapping) and OURS in (config.get("quantized_by"), config.get("quant_method"))


def register(config: type, quantizer: type) -> None:
    """Teach transformers the configuration and the quantiser; once, however often the room is loaded."""

    if OURS in auto.AUTO_QUANTIZER_MAPPING:
        return
    before = auto.AutoHfQuantizer

    class Dispatcher(before):  # type: ignore[misc,valid-type]
        """transformers' choice of a quantiser, before which ours is asked for."""

        @staticmethod
        def supports_quant_method(quantization_config_dict: object) -> bool:
            if is_ours(quantization_config_dict) or is_mlx(quantization_config_dict):  # MLX's names no method
                return True
            return bool(before.supports_quant_method(quantization_config_dict))

        @staticmethod
        def merge_quantization_configs(quantization_config: Any, quantization_config_from_args: Any) -> Any:
            stored, asked = quantization_config, quantization_config_from_args
            if is_ours(stored) and (asked is None or isinstance(asked, config)):
                check_asked(asked, "tilewright")
                return asked or config.from_dict(stored)  # type: ignore[attr-defined]
            if isinstance(asked, config):
                check_asked(asked, stored.get("quant_method") if isinstance(stored, Mapping) else stored.quant_method)
                return asked
            return before.merge_quantization_configs(stored, asked)

    _watch_files()
    auto.register_quantization_config(OURS)(config)
    auto.register_quantizer(OURS)(quantizer)
    auto.AutoHfQuantizer = Dispatcher


def _watch_files() -> None:
    """Let ``AutoModelFor...from_pretrained(path, quantization_config=None)`` mean what it does without: transformers'
    automatic classes take None for the file's own configuration, and load random numbers in place of codes."""
    plain = AutoConfig.from_pretrained

    def from_pretrained(cls: object, *args: object, **kwargs: object) -> Any:
        if kwargs.get("quantization_config", "nothing") is None:
            del kwargs["quantization_config"]
        return plain(*args, **kwargs)

    AutoConfig.from_pretrained = classmethod(from_pretrained)


def check_asked(asked: Any, method: object) -> None:
    """A configuration can be used for weights that are quantised already. Raises CannotQuantize where it asks for a
    scheme, which needs dense weights."""
    if asked is not None and asked.scheme is not None:
        raise CannotQuantize(
            f"the checkpoint is quantised already, by {getattr(method, 'value', method)}: {asked.scheme.name} "
            "needs dense weights",
            hint="QuantizationConfig.as_stored() runs it as it is",
        )
