// Short vectors and register fragments.
#pragma once
#include "tilewright_vectors.cuh"
