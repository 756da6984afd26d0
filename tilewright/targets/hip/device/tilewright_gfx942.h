// The device vocabulary for gfx942.
#pragma once
#define TW_GFX942 1
#define TW_WARP_SIZE 64
#include "tilewright_hip.h"
