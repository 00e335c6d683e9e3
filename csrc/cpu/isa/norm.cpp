#include "cpu/isa/vec.h"
