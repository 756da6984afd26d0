// Short vectors, and fragments whose registers the emulator follows: those of every vocabulary.
#pragma once

#include "fragments.h"
