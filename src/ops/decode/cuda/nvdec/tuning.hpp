// How many decoders of video run at once, and what each of them may keep.
#pragma once

namespace robocache::decode_detail {

/// Decoders of one call. The driver spreads them over the engines (7 on an H200); two per engine hide the time from the
/// end of one picture to the start of the next.
inline constexpr int max_sessions = 16;
/// Threads that feed them.
inline constexpr int max_video_threads = 4;
/// Frames that are copied out of a decoder together.
inline constexpr int num_output_surfaces = 4;
/// Surfaces beyond those that a stream needs: pictures that wait to be copied out.
inline constexpr int num_extra_surfaces = 4;
/// Of one decoder. Streams need at most 17.
inline constexpr int max_surfaces = 32;
/// Decoders that are kept for later calls, of all devices and codecs.
inline constexpr int max_idle_sessions = 2 * max_sessions;

}  // namespace robocache::decode_detail
