// The driver's video library, opened at run time.
#pragma once

#include <string>

#include "ops/decode/cuda/nvdec/cuvid.hpp"

namespace robocache::decode_detail {

struct VideoLibrary {
    cuvid::Functions functions;
    std::string problem;  // why it cannot be used; empty: it can
};

/// Opens a library and finds its functions. It stays open as long as the process runs: decoders may outlive anything.
[[nodiscard]] VideoLibrary open_video_library(const char* path);

/// The one of the driver, opened on first use.
[[nodiscard]] const VideoLibrary& video_library();

}  // namespace robocache::decode_detail
