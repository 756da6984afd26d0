"""Files of weights: safetensors (read and written), GGUF (read), and checkpoints of several shards."""

from tilewright.checkpoints.directory import Checkpoint, open_files
from tilewright.checkpoints.gguf import GGUFFile
from tilewright.checkpoints.opening import open_checkpoint
from tilewright.checkpoints.safetensors import SafetensorsFile, save_safetensors

__all__ = ["Checkpoint", "GGUFFile", "SafetensorsFile", "open_checkpoint", "open_files", "save_safetensors"]
