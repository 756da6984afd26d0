"""The CUDA target: text for NVIDIA GPUs from sm_80 up, its compiler and its launcher."""
