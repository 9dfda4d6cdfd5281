#include "ops/decode/cuda/nvdec/library.hpp"

#include <dlfcn.h>

namespace robocache::decode_detail {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function, VideoLibrary& found) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && found.problem.empty()) found.problem = std::string("the video library has no ") + name;
}

}  // namespace

VideoLibrary open_video_library(const char* path) {
    VideoLibrary found;
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* reason = dlerror();
        found.problem = std::string("the driver's video library cannot be opened: ") + (reason ? reason : path);
        return found;
    }
    cuvid::Functions& f = found.functions;
    find(library, "cuvidGetDecoderCaps", f.get_decoder_caps, found);
    find(library, "cuvidCreateVideoParser", f.create_parser, found);
    find(library, "cuvidParseVideoData", f.parse, found);
    find(library, "cuvidDestroyVideoParser", f.destroy_parser, found);
    find(library, "cuvidCreateDecoder", f.create_decoder, found);
    find(library, "cuvidDestroyDecoder", f.destroy_decoder, found);
    find(library, "cuvidDecodePicture", f.decode_picture, found);
    find(library, "cuvidGetDecodeStatus", f.get_decode_status, found);
    find(library, "cuvidMapVideoFrame64", f.map_frame, found);
    find(library, "cuvidUnmapVideoFrame64", f.unmap_frame, found);
    return found;
}

const VideoLibrary& video_library() {
    static const VideoLibrary library = open_video_library("libnvcuvid.so.1");
    return library;
}

}  // namespace robocache::decode_detail
