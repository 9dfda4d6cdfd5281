// The whole public C++ API of RoboCache.
#pragma once

#include "robocache/align.hpp"
#include "robocache/cache.hpp"
#include "robocache/decode.hpp"
#include "robocache/errors.hpp"
#include "robocache/feature.hpp"
#include "robocache/loader.hpp"
#include "robocache/system.hpp"
#include "robocache/tensor.hpp"
#include "robocache/threads.hpp"
#include "robocache/video.hpp"
#include "robocache/voxelize.hpp"
