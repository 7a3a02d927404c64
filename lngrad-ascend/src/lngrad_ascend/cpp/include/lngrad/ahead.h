// What a kernel that Python launches is compiled behind; precompiled by lngrad_ascend.cpp.precompiled.
#ifndef LNGRAD_AHEAD_H
#define LNGRAD_AHEAD_H

#include "lngrad/entry.h"
#include "lngrad/watch.h"
#include "kernel_operator.h"

#endif
