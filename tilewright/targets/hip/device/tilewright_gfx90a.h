// The device vocabulary for gfx90a.
#pragma once
#define TW_GFX90A 1
#define TW_WARP_SIZE 64
#include "tilewright_hip.h"
