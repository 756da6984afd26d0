// The device vocabulary for gfx950.
#pragma once
#define TW_GFX950 1
#define TW_WARP_SIZE 64
#include "tilewright_hip.h"
