"""The hip target: AMD's GPUs, by HIP text, clang and libamdhip64."""
