// The device vocabulary for gfx1100.
#pragma once
#define TW_GFX1100 1
#define TW_WARP_SIZE 32
#include "tilewright_hip.h"
