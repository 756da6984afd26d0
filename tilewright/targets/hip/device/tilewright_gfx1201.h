// The device vocabulary for gfx1201.
#pragma once
#define TW_GFX1201 1
#define TW_WARP_SIZE 32
#include "tilewright_hip.h"
